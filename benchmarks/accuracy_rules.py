"""The rules that `benchmarks/accuracy.py` compares, and one training by a rule."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
import training
from accuracy_tasks import TASKS
from torch import nn

import sparsewire as sw
from sparsewire.lab.tasks.scores import HIGHER
from sparsewire.lab.tasks.task import MOMENTUM, Data, Part, Task
from sparsewire.training.schedule import SchemeSchedule, Settings, falling_ratio

DENSE = "dense"
SPREADS = ("iid", "classes")
CLASSES_A_RANK = 2


@dataclass(frozen=True)
class Rule:
    """A memory, with a constant ratio for each parameter unless more is said."""

    memory: str
    model: bool = False  # one threshold for the whole model
    falling: bool = False  # the ratio falls as 1/t, with the same mean
    adam: bool = False  # for Adam, with β1 = 0, instead of for SGD with momentum


def _momentum(memory: str, **more: bool) -> Rule:
    return Rule(f"{memory}(momentum={MOMENTUM})", **more)


RULES = {
    "gain": _momentum("gain"),
    "gain+model": _momentum("gain", model=True),
    "gain+falling": _momentum("gain", falling=True),
    "gain+model+falling": _momentum("gain", model=True, falling=True),
    "gmc": _momentum("gmc"),
    "gmc+model+falling": _momentum("gmc", model=True, falling=True),
    "dgc": _momentum("dgc"),
    "dgc+model+falling": _momentum("dgc", model=True, falling=True),
    "residual": Rule("residual", adam=True),
    "residual+falling": Rule("residual", falling=True, adam=True),
    "residual+model": Rule("residual", model=True, adam=True),
    "residual+model+falling": Rule("residual", model=True, falling=True, adam=True),
}


@dataclass(frozen=True)
class Cell(training.Cell):
    """One training: `factor` times the rate at which dense training is best, density × steps = `coverage`."""

    spread: str = "iid"
    factor: float = 1.0
    coverage: float = math.inf

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def fits(self) -> bool:
        return self.rule != DENSE

    @property
    def ratio(self) -> float:
        return min(1.0, self.coverage / self.steps)

    def settings(self, model: nn.Module) -> Settings:
        rule = RULES.get(self.rule, Rule("none"))
        scheme = sw.scheme(f"topk({self.ratio}) | memory={rule.memory}")
        falling = falling_ratio(self.steps, self.ratio) if rule.falling and self.ratio < 1 else None
        schedule = SchemeSchedule(scheme, self.steps if self.rule == DENSE else 0, falling)
        return Settings(schedule, seed=self.seed, select_per="model" if rule.model else "parameter")

    def drawn_from(self, data: Data, rank: int) -> Part:
        return data.train if self.spread == "iid" else of_classes(data.train, classes_of(rank))

    def tested(self, part: Part) -> Part:
        """Nothing of classes that no rank has."""
        held = set[int]().union(*map(classes_of, range(self.ranks)))
        return part if self.spread == "iid" else of_classes(part, held)

    def record(self) -> dict[str, Any]:
        """All that decides the result, as JSON has it."""
        return {**asdict(self), "coverage": None if self.rule == DENSE else min(self.coverage, self.steps)}


def classes_of(rank: int) -> set[int]:
    """Those of the ten classes that a rank has."""
    return {(CLASSES_A_RANK * rank + offset) % 10 for offset in range(CLASSES_A_RANK)}


def of_classes(part: Part, classes: set[int]) -> Part:
    chosen = torch.isin(part[1], torch.tensor(sorted(classes)))
    return part[0][chosen], part[1][chosen]


def train(data: Data, cell: Cell, tuning: bool) -> dict[str, Any]:
    """The record of a training; one that met a gradient which is not finite scores as a guess does."""
    try:
        row = training.train(data, cell, tuning)
    except training.NotFinite:
        return {**cell.record(), "score": guess(data, cell.task), "losses": None}
    losses = [row["curve"][0], row["curve"][-1]]
    kept = {name: row[name] for name in ("score", "bytes", "cpu_seconds", "parameters")}
    return {**cell.record(), **kept, "losses": [round(loss, 5) for loss in losses], "score": round(kept["score"], 6)}


def guess(data: Data, task: Task) -> float:
    """The score of a model that knows nothing."""
    return 1 / data.classes if task.score in HIGHER else math.log(data.classes)
