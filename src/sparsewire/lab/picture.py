"""Pictures of what was measured, without a display."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .tables import write_file

COLOURS = ("#7f7f7f", "#d1495b")
STEPS = 10  # the loss of one batch is noise: a line is the mean of so many


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
    write_file(path, lambda file: figure.savefig(file, format="png", dpi=110))


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
