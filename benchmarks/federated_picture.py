"""The picture of `benchmarks/federated.py`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from federated_rules import RULES, SETTINGS
from local_picture import draw_panels

Row = dict[str, Any]
COLOURS = {"FedAvg": "#8d8d8d", "STC": "#a05195", "SBC": "#d1495b", "DeepReduce": "#30638e", "ours": "#3c7a57"}


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel per task: accuracy against all bytes of a training so far, both ways, the mean of the seeds."""
    names = [name for name in SETTINGS if any(row["task"] == name for row in result["rows"])]
    draw_panels(path, names, lambda axes, name: draw_task(axes, name, [r for r in result["rows"] if r["task"] == name]))


def draw_task(axes: Any, name: str, rows: Sequence[Row]) -> None:
    for rule in RULES:
        curves = [row["curve"] for row in rows if row["rule"] == rule]
        if curves:
            axes.plot(*mean_curve(curves), color=COLOURS[rule], label=rule)
    axes.set_xscale("log")
    axes.set_xlabel("MB up and down, all clients together")
    axes.set_ylabel("test accuracy in %")
    axes.set_title(f"{name}: {SETTINGS[name].what}", fontsize=10)
    axes.grid(alpha=0.2)
    axes.legend(fontsize=8)


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> tuple[list[float], list[float]]:
    points = list(zip(*curves, strict=True))
    megabytes = [statistics.fmean(one[1] + one[2] for one in some) / 1e6 for some in points]
    return megabytes, [100 * statistics.fmean(one[3] for one in some) for some in points]
