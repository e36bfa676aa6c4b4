"""The trainings of `benchmarks/local.py`: tasks of a million parameters, and the rules that they are trained by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from accuracy_tasks import TASKS

from sparsewire.lab.tasks.images import perceptron
from sparsewire.lab.tasks.task import Data, Part
from sparsewire.lab.tasks.texts import Transformer

WORKERS = 4
LOCAL = {
    "mlp": replace(
        TASKS["mnist"], what="MLP 784-1024-256-10, MNIST, SGD", model=partial(perceptron, hidden=(1024, 256)),
        steps=1000, rates=(0.05, 0.1, 0.2),
    ),
    "classes": replace(
        TASKS["mnist"], what="the same, two classes per worker", model=partial(perceptron, hidden=(1024, 256)),
        steps=1000, rates=(0.02, 0.05, 0.1),
    ),
    "transformer": replace(
        TASKS["text"], what="transformer of 4 layers, characters, AdamW",
        model=partial(Transformer, width=160, layers=4), steps=700, batch=4, rates=(0.001, 0.002, 0.004),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """How often, and through which scheme, the workers meet; no scheme: their changes are averaged dense.

    `every` None: gradients are averaged in every step, as DDP does.
    """

    every: int | None
    scheme: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of `local_steps`."""
        dense = {} if self.scheme else {"dense_rounds": 10**9}
        return {"every": self.every, **dense, **self.settings}


def _stc(ratio: float, decay: float = 0.95) -> str:
    return f"topk({ratio}) | indices=best | values=sign_mean | memory=residual(decay={decay})"


RULES = {
    "dense": Rule(None),
    "FedAvg, H = 10": Rule(10),
    "FedAvg, H = 50": Rule(50, None, {"outer": "sgd(rate=1.5)"}),
    "FedAvg, H = 100": Rule(100),
    "DiLoCo, H = 10": Rule(10, None, {"outer": "sgd(rate=0.7, momentum=0.9, nesterov=true)"}),
    "SBC(1)": Rule(1, "sbc(level=1)"),
    "SBC(2)": Rule(10, "sbc(level=2)"),
    "SBC(3)": Rule(100, "sbc(level=3)"),
    "STC": Rule(10, "stc(ratio=0.01)"),
    "SparseLoCo, H = 10": Rule(10, "sparseloco"),
    "SparseLoCo": Rule(30, "sparseloco"),
    "ours": Rule(10, _stc(0.0133), {"mean": "sqrt"}),
    "ours, H = 50": Rule(50, _stc(0.178, 0.9), {"mean": "senders"}),
}


def workers_data(name: str, data: Data) -> list[Part]:
    """What each worker draws its batches from: all of it, or the images of two classes."""
    if name != "classes":
        return [data.train] * WORKERS
    x, y = data.train
    chosen = [(y == 2 * worker) | (y == 2 * worker + 1) for worker in range(WORKERS)]
    return [(x[some], y[some]) for some in chosen]


def tested(name: str, part: Part) -> Part:
    """Of classes that no worker has, nothing is tested."""
    known = part[1] < 2 * WORKERS if name == "classes" else torch.ones(len(part[0]), dtype=torch.bool)
    return part[0][known], part[1][known]
