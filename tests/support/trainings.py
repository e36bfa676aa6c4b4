"""Small trainings of an `Averager` between threads, and what they keep."""

from __future__ import annotations

from typing import Any

import numpy as np
from strategies import make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator
from sparsewire.training.averager import Averager, Settings
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.schedule import SchemeSchedule

SCHEME = "topk(5%) | indices=rice | values=qsgd(5) | memory=residual"


NAMES = {"w": 300, "v": 200, "b": 7}


def averager(comm: Communicator, scheme: str = SCHEME, warmup: int = 0, **settings: Any) -> Averager:
    schedule = SchemeSchedule(sw.scheme(scheme), warmup)
    sizes = settings.pop("sizes", None)
    return Averager(comm, Settings(schedule, dense_below=settings.pop("dense_below", 10), **settings), sizes)


def gradients(comm: Communicator, step: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    return {
        name: make("normal", size, "float32", 1000 * step + 10 * comm.rank + place) * np.float32(scale)
        for place, (name, size) in enumerate(NAMES.items())
    }


def train(one: Averager, comm: Communicator, steps: range, scale: float = 1.0) -> list[np.ndarray]:
    """The means of each step."""
    means = []
    for step in steps:
        x = gradients(comm, step, scale)
        one.put(x)
        assert one.finish()
        means += list(x.values())
    return means


def residuals(one: Averager) -> dict[str, np.ndarray]:
    return {name: kept["residual"].copy() for name, kept in one.states.by_name.items() if "residual" in kept}


def all_same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(map(same_bits, a, b))


def put_groups(one: Averager, x: dict[str, np.ndarray], groups: list[list[str]]) -> dict[str, np.ndarray]:
    """A step with parameters bundled so; the residuals after it."""
    for group in groups:
        ends = np.cumsum([0, *(NAMES[name] for name in group)])
        slices = tuple(Slice(name, ends[i], ends[i + 1]) for i, name in enumerate(group))
        flat = np.concatenate([x[name] for name in group])
        one.put_buffers([Buffer(slices, "float32", lambda flat=flat: flat)])
    one.finish()
    return residuals(one)
