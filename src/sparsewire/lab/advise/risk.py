"""What compression cost in accuracy where it was measured: docs/measurements/accuracy-ratios.md.

The figures are copied from that table (`benchmarks/accuracy.py`, seeds 31 to 33; fewer where it says so there). They
are of short runs of small models at dense's best rate, and say what to look out for, not what will happen. What decides
is coverage, ratio times steps: where the run's length is known, the runs of the nearest coverage are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SGD, ADAM = "momentum", "adam"
OPTIMIZERS = (SGD, ADAM)
STEPS = 700  # of those runs: 600, and 800 on MNIST
SOURCE = "docs/measurements/accuracy-ratios.md"
MEMORIES = {
    "residual": "memory=residual behind the optimizer's momentum",
    "dgc": "the momentum in front of the selection (SGD: memory=dgc; Adam: memory=residual and optimizer=, β1 = 0)",
    "ours": 'the same with falling_ratio and select_per="model"',
}


@dataclass(frozen=True)
class Measured:
    """Against dense in the same steps: points of accuracy, which should not fall, or nats of loss, not rise."""

    task: str
    optimizer: str
    ratio: float
    rule: str
    change: float
    unit: str

    @property
    def loss(self) -> float:
        """How much worse than dense."""
        return -self.change if self.unit == "points" else self.change

    def __str__(self) -> str:
        digits = 2 if self.unit == "points" else 3
        return f"{self.change:+.{digits}f} {self.unit} ({self.task})"


def _rows(task: str, optimizer: str, unit: str, figures: str) -> list[Measured]:
    """`figures`: ratio, rule and difference to dense, in turn."""
    words = iter(figures.split())
    return [
        Measured(task, optimizer, float(ratio) / 100, rule, float(change), unit)
        for ratio, rule, change in zip(words, words, words, strict=True)
    ]


TABLE = [
    *_rows("MLP, MNIST", SGD, "points",
           "1 residual -0.72  1 dgc -0.43  1 ours -0.23  0.1 residual -1.87  0.1 dgc -0.95  0.1 ours -0.52"),
    *_rows("ResNet-20, CIFAR-10", SGD, "points",
           "1 residual -4.21  1 dgc -1.95  1 ours -0.48  0.1 residual -3.16  0.1 dgc -4.16  0.1 ours -2.77"),
    *_rows("LSTM, WikiText-2", SGD, "nats",
           "1 residual 0.014  1 dgc 0.029  1 ours -0.004  0.1 residual 0.106  0.1 dgc 0.032  0.1 ours 0.028"),
    *_rows("transformer, characters", ADAM, "nats",
           "1 residual 0.300  1 dgc -0.009  1 ours -0.006  0.1 residual 0.275  0.1 dgc 0.137  0.1 ours 0.175"),
]  # fmt: skip


def risk(density: float, optimizers: Sequence[str] = OPTIMIZERS, coverage: float | None = None) -> list[dict[str, Any]]:
    """By optimizer and rule: what was measured at the nearest coverage, or where there is none at the nearest density
    (by its logarithm)."""
    asked = density if coverage is None else coverage / STEPS  # the density of those runs with this coverage
    nearest = 0.01 if asked**2 >= 0.01 * 0.001 else 0.001
    risks = []
    for optimizer in optimizers:
        for rule, meaning in MEMORIES.items():
            rows = [row for row in TABLE if (row.optimizer, row.ratio, row.rule) == (optimizer, nearest, rule)]
            figures = {"changes": [str(row) for row in rows], "worst": str(max(rows, key=lambda row: row.loss))}
            at = {"density": nearest, "coverage": nearest * STEPS, "asked": asked}
            risks.append({"optimizer": optimizer, **at, "rule": rule, "meaning": meaning, **figures})
    return risks
