"""The picture of `benchmarks/exchanges.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exchanges_tasks import RULES, TASKS
from local_picture import draw_panels, draw_rule

from sparsewire.lab.pictures import BLACK, BLUE, GREEN, MINT, PURPLE, RED, YELLOW, label_axes
from sparsewire.lab.tasks.scores import HIGHER, UNITS

Row = dict[str, Any]
SHADES = (BLACK, RED, PURPLE, GREEN, BLUE, YELLOW, MINT)


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
    what = f"{UNITS[score]}{'' if score in HIGHER else ', lower is better'}"
    label_axes(axes, "MB on the wire of a rank", what, TASKS[name].what)
