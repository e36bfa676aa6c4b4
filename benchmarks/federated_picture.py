"""The picture of `benchmarks/federated.py`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from federated_rules import RULES, SETTINGS
from local_picture import draw_panels

from sparsewire.lab.pictures import BLUE, GREEN, LIGHT, PURPLE, RED, label_axes

Row = dict[str, Any]
COLOURS = {"FedAvg": LIGHT, "STC": PURPLE, "SBC": RED, "DeepReduce": BLUE, "ours": GREEN}


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel per task: accuracy against all bytes of a training so far, both ways, the mean of the seeds."""
    names = [name for name in SETTINGS if any(row["task"] == name for row in result["rows"])]
    draw_panels(path, names, lambda axes, name: draw_task(axes, name, [r for r in result["rows"] if r["task"] == name]))


def draw_task(axes: Any, name: str, rows: Sequence[Row]) -> None:
    for rule in RULES:
        curves = [row["curve"] for row in rows if row["rule"] == rule]
        if curves:
            axes.plot(*mean_curve(curves), color=COLOURS[rule], label=rule)
    what, title = "MB up and down, all clients together", f"{name}: {SETTINGS[name].what}"
    label_axes(axes, what, "test accuracy in %", title, "best", xscale="log")


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    points = list(zip(*curves, strict=True))
    megabytes = [statistics.fmean(one[1] + one[2] for one in some) / 1e6 for some in points]
    return megabytes, [100 * statistics.fmean(one[3] for one in some) for some in points]
