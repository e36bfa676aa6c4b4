"""Pictures of what was measured, without a display."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .curves import front
from .tables import write_file

COLOURS = ("#7f7f7f", "#edae49", "#d1495b")
CURVES = {
    "entropy": "#d1495b",
    "qsgd": "#30638e",
    "qsgd+deflate": "#76b0d6",
    "quantile": "#3c7a57",
    "fit_poly": "#edae49",
    "fit_dexp": "#8d6a9f",
    "half": "#444444",
    "bfloat16": "#999999",
}
MARKERS = "osdv^<*P"
STEPS = 10  # losses are drawn as a moving mean over so many steps


def save_figure(figure: Figure, path: Path) -> None:
    """As what its suffix says: .svg, .pdf, otherwise PNG."""
    kind = path.suffix[1:].lower()
    write_file(path, lambda file: figure.savefig(file, format=kind if kind in ("svg", "pdf") else "png", dpi=100))


def draw_training(result: dict[str, Any], path: Path) -> None:
    """Loss over steps, and bytes sent over time."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, sent = figure.subplots(1, 2)
    for (name, curve), colour in zip(result["curves"].items(), COLOURS, strict=True):
        facts = result["arms"][name]
        _draw_loss(loss, curve["loss"], f"{name}: {facts['accuracy']:.1%} on held-out digits", colour)
        _draw_bytes(sent, curve, f"{name}: {_megabytes(facts['bytes'])} in all", colour)
    _label(loss, "step", f"training loss (mean of {STEPS} steps)", "Training loss")
    _label(sent, "seconds of its own steps", "bytes sent by a rank so far", f"Bytes: {result['ratio']:.0f} × fewer")
    figure.suptitle(f"{result['parameters']:,} parameters, {result['ranks']} ranks: {result['scheme']}", fontsize=10)
    save_figure(figure, path)


def draw_rates(result: dict[str, Any], path: Path) -> None:
    """Bits per value over relative error, a panel per input: every codec's best settings as a line."""
    inputs = result["inputs"]
    columns = -(-len(inputs) // 2)
    figure = Figure(figsize=(1 + 4.6 * columns, 8.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, columns, squeeze=False, sharex=True, sharey=True).flat
    for axes, one in zip(panels, inputs, strict=False):
        _draw_rates(axes, one["points"])
        axes.set_title(f"{one['input']}: {one['count']:,} values", fontsize=10)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle("Bits per value, maps included, against relative error: lower left is better", fontsize=11)
    save_figure(figure, path)


def _draw_rates(axes: Axes, points: list[dict[str, Any]]) -> None:
    for (name, colour), marker in zip(CURVES.items(), MARKERS, strict=True):
        best = front(point for point in points if point["curve"] == name)
        ours = name == "entropy"
        style: dict[str, Any] = {
            "marker": marker,
            "markersize": 4,
            "linewidth": 2.6 if ours else 1.2,
            "zorder": 3 if ours else 2,
        }
        errors, bits = ([point[key] for point in best] for key in ("error", "bits"))
        axes.plot(errors, bits, color=colour, label=name, **style)
    axes.set(xscale="log", xlim=(1e-4, 0.5), ylim=(0, 17), xlabel="relative error", ylabel="bits per value")
    axes.grid(alpha=0.3)
    axes.label_outer()
    axes.spines[["top", "right"]].set_visible(False)


def _draw_loss(axes: Axes, losses: list[float], label: str, colour: str) -> None:
    window = min(STEPS, len(losses))
    means = [sum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]
    axes.semilogy(range(window, len(losses) + 1), means, color=colour, label=label)


def _draw_bytes(axes: Axes, curve: dict[str, list[float]], label: str, colour: str) -> None:
    axes.semilogy(list(accumulate(curve["seconds"])), list(accumulate(curve["bytes"])), color=colour, label=label)


def _label(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    axes.spines[["top", "right"]].set_visible(False)


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"
