"""The picture of `benchmarks/local.py`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from local_rules import LOCAL, RULES

from sparsewire.lab.pictures import BLACK, BLUE, GREEN, LIGHT, PURPLE, RED, YELLOW, label_axes, new_figure, save_figure

Row = dict[str, Any]
FAMILIES = {
    "dense": BLACK, "FedAvg": LIGHT, "DiLoCo": YELLOW, "SBC": RED, "STC": PURPLE, "SparseLoCo": BLUE, "ours": GREEN,
}  # fmt: skip


def colour(rule: str) -> str:
    return next(found for family, found in FAMILIES.items() if rule.startswith(family))


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel per task: quality against bits per parameter and step, a dot per seed, a mark at a rule's mean."""
    names = [name for name in LOCAL if any(row["task"] == name for row in result["rows"])]
    draw_panels(path, names, lambda axes, name: draw_task(axes, name, [r for r in result["rows"] if r["task"] == name]))


def draw_panels(path: Path, names: Sequence[str], draw_one: Callable[[Any, str], None]) -> None:
    figure = new_figure(1 + 6 * len(names), 5.5)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        draw_one(axes, name)
    save_figure(figure, path)


def draw_task(axes: Any, name: str, rows: Sequence[Row]) -> None:
    accuracy = LOCAL[name].score == "accuracy"
    for rule in [rule for rule in RULES if any(row["rule"] == rule for row in rows)]:
        some = [row for row in rows if row["rule"] == rule]
        draw_rule(axes, rule, colour(rule), [(row["bits"], row["score"] * (100 if accuracy else 1)) for row in some])
    what = "test accuracy in %" if accuracy else "test loss in nats, lower is better"
    label_axes(axes, "bits sent per parameter and step (dense: 32)", what, LOCAL[name].what)


def draw_rule(axes: Any, rule: str, shade: str, dots: Sequence[tuple[float, float]]) -> None:
    """A dot per seed, and the rule's name at their mean."""
    axes.plot(*zip(*dots, strict=True), "o", color=shade, alpha=0.4)
    place = [statistics.fmean(some) for some in zip(*dots, strict=True)]
    axes.plot(*place, "D", color=shade)
    axes.annotate(rule, place, xytext=(6, 6), textcoords="offset points", fontsize=8, color=shade)
    axes.set_xscale("log")
    axes.margins(0.25, 0.12)
