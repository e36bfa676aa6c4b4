"""The picture of `benchmarks/accuracy.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy_table import SETTING, Outcome, grouped, grouped_by_rule, mean, outcomes
from accuracy_tasks import TASKS

from sparsewire.errors import InputError
from sparsewire.lab.pictures import BLACK, BLUE, GREEN, MINT, RED, YELLOW, label_axes, new_figure, save_figure

COLOURS = {"gain": GREEN, "gmc": YELLOW, "dgc": BLUE, "residual": RED}


def draw(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel for each task: what each rule loses, a dot for each setting."""
    found = outcomes(records)
    if not found:
        raise InputError("there is nothing to draw: no rule was trained beside dense training")
    names = [name for name in TASKS if any(one.record["name"] == name for one in found)]
    figure = new_figure(1 + 5.2 * len(names), 6)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        draw_task(axes, name, [one for one in found if one.record["name"] == name])
    save_figure(figure, path)


def draw_task(axes: Any, name: str, found: Sequence[Outcome]) -> None:
    groups, factor = grouped_by_rule(found), 100 if TASKS[name].score == "accuracy" else 1
    for place, ((_, rule, _), some) in enumerate(groups.items()):
        means = [factor * mean(seeds) for seeds in grouped(some, *SETTING).values()]
        axes.plot([place] * len(means), means, "o", color=colour(rule))
        axes.plot([place, place], [min(means), max(means)], color=colour(rule))
    axes.axhline(0, color=BLACK, linewidth=1)
    labels = [f"{rule}, c = {coverage}" for _, rule, coverage in groups]
    axes.set_xticks(range(len(groups)), labels, rotation=90)
    what = "points of test accuracy, higher is better" if factor == 100 else "nats of test loss, lower is better"
    label_axes(axes, "", what, f"{name}: difference to dense, a dot per setting")


def colour(rule: str) -> str:
    """That of its memory; of the plain rule darker."""
    return MINT if rule.startswith("gain+") else COLOURS[rule.partition("+")[0]]
