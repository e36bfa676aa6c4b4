"""Trainings on machines with several ranks: averagers, gradients with a table's rows, steps, what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
from strategies import make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator
from sparsewire.training.averager import Averager, Settings
from sparsewire.training.residuals.reshard import reshard
from sparsewire.training.schedule import SchemeSchedule

ALL = "nonzero | values=raw"
SOME = "topk(5%) | values=qsgd(5)"
NAMES = {"w": 3000, "v": 1500, "u": 2, "b": 7}
ROWS = 40


def averager(comm: Communicator, per: int | str | None, scheme: str = SOME, warmup: int = 0, **more: Any) -> Averager:
    more = {"dense_below": 10, **more}
    return Averager(comm, Settings(SchemeSchedule(sw.scheme(scheme), warmup), nodes=per, **more))


def gradients(comm: Communicator, step: int, kind: str = "float32") -> dict[str, Any]:
    """Dense ones and a table's rows."""
    dense = {
        name: make("normal", size, kind, 1000 * step + 10 * comm.rank + place)
        for place, (name, size) in enumerate(NAMES.items())
    }
    rows = np.unique(np.random.default_rng([step, comm.rank]).integers(0, ROWS, 12))
    values = make("normal", 4 * rows.size, kind, step + 50 + comm.rank)
    return {**dense, "table": sw.Sparse(rows, values, (ROWS, 4), width=4)}


def run(one: Averager, x: dict[str, Any], expect: bool = True) -> dict[str, np.ndarray]:
    """A step; the means, dense."""
    one.put(x)
    assert one.finish() == expect
    means = {name: kept for name, kept in x.items() if not isinstance(kept, sw.Sparse)}
    return means | {name: kept.to_dense().reshape(-1) for name, kept in one.sparse_means.items()}


def train(one: Averager, comm: Communicator, steps: range) -> list[dict[str, np.ndarray]]:
    return [run(one, gradients(comm, step)) for step in steps]


def flat(x: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: kept.to_dense().reshape(-1) if isinstance(kept, sw.Sparse) else kept for name, kept in x.items()}


def all_same(a: list[dict[str, np.ndarray]], b: list[dict[str, np.ndarray]]) -> bool:
    return len(a) == len(b) and all(same_bits(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x)


def kept(states: list[dict[str, Any]], name: str) -> np.ndarray:
    """The mean over the machines of what was not sent of a parameter."""
    whole = reshard(states, 1)[0]["buffers"].get(name, {}).get("residual", np.zeros(1))
    if isinstance(whole, dict):
        table = np.zeros((ROWS, 4))
        table[whole["indices"]] = whole["values"].reshape(-1, 4)
        return table.reshape(-1)
    return np.asarray(whole, np.float64)
