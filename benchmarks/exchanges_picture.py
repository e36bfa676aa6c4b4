"""The picture of `benchmarks/exchanges.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exchanges_tasks import RULES, TASKS
from local_picture import draw_panels, draw_rule

from sparsewire.lab.tasks.scores import HIGHER, UNITS

Row = dict[str, Any]
SHADES = ("#444444", "#d1495b", "#a05195", "#3c7a57", "#30638e", "#edae49", "#8fb8a0")


def draw(result: dict[str, Any], path: Path) -> None:
    """A panel per task: the score against the bytes that a rank sends, a dot per seed."""
    names = [name for name in TASKS if any(row["task"] == name for row in result["rows"])]
    draw_panels(path, names, lambda axes, name: _draw(axes, name, [r for r in result["rows"] if r["task"] == name]))


def _draw(axes: Any, name: str, rows: Sequence[Row]) -> None:
    score = TASKS[name].score
    for rule, shade in zip(RULES[name], SHADES, strict=False):
        dots = [(row["compressed"] / 1e6, row["score"] * (100 if score in HIGHER else 1))
                for row in rows if row["rule"] == rule]  # fmt: skip
        if dots:
            draw_rule(axes, rule, shade, dots)
    axes.set_xlabel("MB on the wire of a rank")
    axes.set_ylabel(f"{UNITS[score]}{'' if score in HIGHER else ', lower is better'}")
    axes.set_title(TASKS[name].what, fontsize=10)
