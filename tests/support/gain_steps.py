"""Averagers with `memory=gain`, and steps of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import sparsewire as sw
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

MOMENTUM = 0.9
SOME = "topk(5%) | values=raw | memory=gain"
ALL = "nonzero | values=raw | memory=gain"
COMPRESSED = ("w", "v")


def gain_of(one: Averager) -> dict[str, float]:
    found: dict[str, float] = one.stats()["gain"]
    return found


def step_of(one: Averager, x: dict[str, np.ndarray], finite: bool = True) -> dict[str, np.ndarray]:
    one.put(x)
    assert one.finish() == finite
    return x


class Phases(SchemeSchedule):
    """Dense in some steps."""

    def at(self, step: int) -> Scheme | None:
        return None if step % 13 in (5, 6, 9) else self.scheme


def phased(comm: Communicator, scheme: str, **settings: Any) -> Averager:
    return Averager(comm, Settings(Phases(sw.scheme(scheme)), dense_below=10, **settings))
