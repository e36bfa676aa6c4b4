"""The picture of `bench exchange`: what was counted and timed as marks, the cost model as lines to 10,000 ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsewire.lab.pictures import MARKERS, SERIES, label_axes, new_figure, save_figure

from .steps import DENSE, SUPPORTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw_exchanges(result: dict[str, Any], path: Path) -> None:
    """A row of panels per kind of supports; bytes, and time on each link that the model is told of."""
    links = list(dict.fromkeys(row["link"] for row in result["ahead"]))
    figure = new_figure(1 + 5.4 * (1 + len(links)), 9)
    panels = figure.subplots(2, 1 + len(links), squeeze=False, sharex=True, sharey="col")
    for (bytes_axes, *time_axes), supports in zip(panels, SUPPORTS, strict=True):
        _draw(bytes_axes, _of(result["bytes"], supports), _of(result["ahead"], supports, links[0]), "both", 1e6)
        label_axes(bytes_axes, "ranks", "MB in + out of the busiest rank", f"{supports} supports: bytes")
        for axes, link in zip(time_axes, links, strict=True):
            _draw(axes, _of(result["times"], supports, link), _of(result["ahead"], supports, link), "seconds", 1.0)
            label_axes(axes, "ranks", "seconds per step", f"{supports} supports: step on links of {link}")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    size = f"{result['entries']:,} of {result['numel']:,} float32 per rank, {result['codecs']}"
    cores, alpha = result["machine"]["cores"], 1e6 * result["ahead"][0]["latency"]
    lines = f"Lines: model, rings, α = {alpha:g} µs, a core per rank"
    figure.suptitle(f"{size}. Marks: counted, or timed on {cores} cores. {lines}", fontsize=11)
    save_figure(figure, path)


def _of(rows: Sequence[Row], supports: str, link: str | None = None) -> list[Row]:
    """The rows of a panel; the dense baseline is in all of them."""
    fitting = [row for row in rows if row["supports"] == supports or row["exchange"] == DENSE]
    return [row for row in fitting if link is None or row["link"] == link]


def _draw(axes: Axes, measured: Sequence[Row], model: Sequence[Row], key: str, scale: float) -> None:
    names = dict.fromkeys(row["exchange"] for row in (*measured, *model))
    for index, name in enumerate(names):
        style = {"color": SERIES[index % len(SERIES)], "marker": MARKERS[index % len(MARKERS)], "label": name}
        points, line = (_curve(rows, name, key, scale) for rows in (measured, model))
        axes.loglog(*line, color=style["color"], linewidth=1.4)
        axes.loglog(*points, linestyle="none", markersize=6, **style)


def _curve(rows: Sequence[Row], name: str, key: str, scale: float) -> tuple[list[float], list[float]]:
    own = [row for row in rows if row["exchange"] == name]
    return [row["ranks"] for row in own], [row[key] / scale for row in own]
