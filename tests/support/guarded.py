"""Trainings that a guard watches: averagers, gradients with a burst in them, steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from strategies import make

import sparsewire as sw
from sparsewire.comm import Communicator
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

SIZES = {"w": 1200, "v": 700, "b": 5}
SOME = "topk(10%) | values=raw"
BURST = range(20, 29)  # steps whose gradients are much larger than all others
AFTER = 31  # the check behind it
Means = dict[str, np.ndarray]


def averager(comm: Communicator, memory: str = "residual", action: str | None = "dense", **more: Any) -> Averager:
    schedule = SchemeSchedule(sw.scheme(f"{SOME} | memory={memory}"))
    return Averager(comm, Settings(schedule, dense_below=10, on_divergence=action, **more))


def gradients(comm: Communicator, step: int, burst: bool = True) -> Means:
    """Rank 1's are much larger in the burst, the others' never."""
    factor = np.float32(1e6 if burst and step in BURST and comm.rank == 1 else 1)
    return {name: factor * make("normal", size, "float32", 100 * step + 10 * comm.rank + place)
            for place, (name, size) in enumerate(SIZES.items())}  # fmt: skip


def step_of(one: Averager, x: Means, finite: bool = True) -> Means:
    one.put(x)
    assert one.finish() == finite
    return x


def train(one: Averager, comm: Communicator, steps: range, **more: Any) -> list[Means]:
    return [step_of(one, gradients(comm, step, **more)) for step in steps]


def guard_of(one: Averager) -> dict[str, Any]:
    found: dict[str, Any] = one.stats()["guard"]
    return found
