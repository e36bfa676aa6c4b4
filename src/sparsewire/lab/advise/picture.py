"""The picture of `advise`: energy kept in time and in frequency, values, bytes of every candidate at equal error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from ..pictures import BLACK, BLUE, LIGHT, RED, label_axes, new_figure, save_figure
from .candidates import FREQUENCY
from .facts import SHARES

COLOURS = {"time": BLUE, "frequency": RED}
THIN: dict[str, Any] = {"linewidth": 0.6, "alpha": 0.35}


def draw_advice(result: Mapping[str, Any], path: Path) -> None:
    """Panels of energies and of values, where single tensors are thin lines, and a panel of bars for each error."""
    rankings = result["rankings"]
    figure = new_figure(10 + 6.4 * len(rankings), 6)
    energies, values, *bars = figure.subplots(1, 2 + len(rankings))
    _draw_energies(energies, result["tensors"])
    _draw_values(values, result["tensors"])
    for axes, ranking in zip(bars, rankings, strict=True):
        _draw_ranking(axes, ranking)
    figure.suptitle(f"{result['numel']:,} elements. {result['verdict'][0].partition(':')[0]}", fontsize=11)
    save_figure(figure, path)


def _draw_energies(axes: Axes, tensors: Sequence[Mapping[str, Any]]) -> None:
    for kind, colour in COLOURS.items():
        for row in tensors[:-1]:
            axes.semilogx(*_curve(row[kind]), color=colour, **THIN)
        axes.semilogx(*_curve(tensors[-1][kind]), color=colour, linewidth=2.4, label=f"in {kind}{_whose(tensors)}")
    for share in SHARES:
        axes.axvline(100 * share, color=LIGHT, linewidth=0.7, linestyle=":")
    what = "energy that they hold, %"
    label_axes(axes, "largest entries, %", what, "Energy kept", "lower right", ylim=(0, 101))
    axes.set_xticks([0.1, 1, 5, 15, 100], ["0.1", "1", "5", "15", "100"])
    axes.minorticks_off()


def _draw_values(axes: Axes, tensors: Sequence[Mapping[str, Any]]) -> None:
    """How many of the values that are not zero lie in each octave below the largest of all tensors."""
    for row in tensors:
        whole = row is tensors[-1]
        style = {"linewidth": 2.4, "label": f"{row['values']}{_whose(tensors)}"} if whole else THIN
        edges = [2.0**-octave for octave in range(len(row["octaves"]) + 1)]
        axes.stairs([100 * part for part in row["octaves"]], edges, color=BLACK, **style)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    label_axes(axes, "magnitude, of the largest", "values that are not zero, % per octave", "Values", "upper left")


def _whose(tensors: Sequence[Mapping[str, Any]]) -> str:
    """What the thick line is of, where there are thin ones."""
    return f", {tensors[-1]['tensor']} (thin: single ones)" if len(tensors) > 1 else ""


def _curve(kept: Mapping[str, float]) -> tuple[list[float], list[float]]:
    return [100 * float(share) for share in kept], [100 * energy for energy in kept.values()]


def _draw_ranking(axes: Axes, ranking: Mapping[str, Any]) -> None:
    """The fewest bytes on top; a candidate that cannot reach the error has no bar."""
    rows = ranking["rows"][::-1]
    reached = [row["bytes"] / 1e3 for row in rows if row["reached"]] or [1.0]
    left, right = min(reached) / 2, 3 * max(reached)
    sizes = [row["bytes"] / 1e3 if row["reached"] else left for row in rows]
    colours = [COLOURS["frequency" if row["candidate"].startswith(FREQUENCY) else "time"] for row in rows]
    axes.barh([row["candidate"] for row in rows], [size - left for size in sizes], left=left, color=colours)
    for place, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        note = f"{row['times_smaller']:,.1f} ×" if row["reached"] else f"out of reach: {row['error']:.2f} at best"
        axes.text(1.03 * size, place, note, va="center", fontsize=8, color=BLACK)
    title = f"Bytes with a relative error ≤ {ranking['error']:g}"
    label_axes(axes, "kB (and × smaller than float32)", title=title, xscale="log", xlim=(left, right))
    axes.grid(False)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(lambda size, _: f"{size:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
