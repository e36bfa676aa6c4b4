"""The picture of `benchmarks/accuracy.py`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy_tasks import TASKS

from sparsewire.lab.pictures import BLACK, BLUE, GREEN, MINT, RED, YELLOW, label_axes, new_figure, save_figure

COLOURS = {"dense": BLACK, "residual": RED, "dgc": BLUE, "gmc": YELLOW, "ours": GREEN, "longer": MINT}
RULES = tuple(COLOURS)
Row = dict[str, Any]


def groups(rows: Sequence[Row]) -> dict[tuple[str, str, float | None], list[Row]]:
    """The seeds of each task, rule and ratio."""
    found: dict[tuple[str, str, float | None], list[Row]] = {}
    for row in rows:
        found.setdefault((row["task"], row["rule"], row["ratio"]), []).append(row)
    order = sorted(found, key=lambda key: ([*TASKS].index(key[0]), -(key[2] or 1), RULES.index(key[1])))
    return {key: found[key] for key in order}


def draw(result: dict[str, Any], path: Path) -> None:
    """Above what each rule loses, a dot per seed; below the training loss at the smallest ratio."""
    names = [name for name in TASKS if any(row["task"] == name for row in result["rows"])]
    figure = new_figure(1 + 5.2 * len(names), 8)
    panels = figure.subplots(2, len(names), squeeze=False)
    for column, name in enumerate(names):
        found = {key: some for key, some in groups(result["rows"]).items() if key[0] == name}
        draw_differences(panels[0][column], name, found)
        draw_curves(panels[1][column], found)
    save_figure(figure, path)


def draw_differences(axes: Any, name: str, found: dict[Any, list[Row]]) -> None:
    shown = {key: some for key, some in found.items() if key[1] != "dense"}
    factor = 100 if TASKS[name].score == "accuracy" else 1
    for place, ((_, rule, _), some) in enumerate(shown.items()):
        values = [factor * row["difference"] for row in some]
        axes.bar(place, statistics.fmean(values), color=COLOURS[rule], alpha=0.5)
        axes.plot([place] * len(values), values, "o", color=COLOURS[rule])
    axes.axhline(0, color=COLOURS["dense"], linewidth=1)
    axes.set_xticks(range(len(shown)), [f"{rule}\n{ratio:.1%}" for _, rule, ratio in shown])
    what = "points of test accuracy, higher is better" if factor == 100 else "nats of test loss, lower is better"
    label_axes(axes, "", what, f"{TASKS[name].what}: difference to dense, a dot per seed")


def draw_curves(axes: Any, found: dict[Any, list[Row]]) -> None:
    least = min(ratio for _, _, ratio in found if ratio is not None)
    shown = {rule: some for (_, rule, ratio), some in found.items() if ratio in (None, least) and rule != "longer"}
    for rule, some in shown.items():
        curve = [statistics.fmean(losses) for losses in zip(*(row["curve"] for row in some), strict=True)]
        axes.plot(range(1, len(curve) + 1), curve, color=COLOURS[rule], label=rule)
    label_axes(axes, "step", "training loss, moving mean", f"At a ratio of {least:.1%}", "best", yscale="log")
