"""The picture of `bench rates`: bits per value over relative error, a panel per input."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..curves import front
from ..pictures import BLACK, BLUE, GREEN, LIGHT, MARKERS, RED, SKY, VIOLET, YELLOW, label_axes, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = {
    "entropy": RED, "qsgd": BLUE, "qsgd+deflate": SKY, "quantile": GREEN, "fit_poly": YELLOW, "fit_dexp": VIOLET,
    "half": BLACK, "bfloat16": LIGHT,
}  # fmt: skip


def draw_rates(result: dict[str, Any], path: Path) -> None:
    """Every codec's best settings as a line."""
    inputs = result["inputs"]
    columns = -(-len(inputs) // 2)
    figure = new_figure(1 + 4.6 * columns, 8.4)
    panels = figure.subplots(2, columns, squeeze=False, sharex=True, sharey=True).flat
    for axes, one in zip(panels, inputs, strict=False):
        _draw_rates(axes, one["points"], f"{one['input']}: {one['count']:,} values")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle("Bits per value, maps included, against relative error: lower left is better", fontsize=11)
    save_figure(figure, path)


def _draw_rates(axes: Axes, points: list[dict[str, Any]], title: str) -> None:
    for (name, colour), marker in zip(CURVES.items(), MARKERS, strict=False):
        best = front(point for point in points if point["curve"] == name)
        width, order = (2.6, 3) if name == "entropy" else (1.2, 2)
        errors, bits = ([point[key] for point in best] for key in ("error", "bits"))
        axes.plot(errors, bits, marker, ls="-", color=colour, label=name, ms=4, lw=width, zorder=order)
    label_axes(axes, "relative error", "bits per value", title, xscale="log", xlim=(1e-4, 0.5), ylim=(0, 17))
    axes.label_outer()
