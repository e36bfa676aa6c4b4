"""What the tests of `select_per="model"` share: the selection by brute force, and looking at what was sent."""

from __future__ import annotations

from typing import Any

import numpy as np
from trainings import averager

import sparsewire as sw
from sparsewire.comm import Communicator
from sparsewire.exchange import Selected
from sparsewire.training.averager import Averager

Arrays = dict[str, np.ndarray]
RAW = "topk(5%) | values=raw"


def brute_force(arrays: Arrays, count: int) -> dict[str, np.ndarray]:
    """Each tensor's places among the `count` largest of all, ties to the lowest place in the order of names."""
    names = sorted(arrays)
    together = np.concatenate([arrays[name] for name in names])
    order = np.argsort(~sw.kernels.magnitude_bits(together), kind="stable")
    chosen, start = np.sort(order[:count]), 0
    places = {}
    for name in names:
        stop = start + arrays[name].size
        places[name] = chosen[(chosen >= start) & (chosen < stop)] - start
        start = stop
    return places


def compete(comm: Communicator, scheme: str = RAW, warmup: int = 0, **settings: Any) -> Averager:
    return averager(comm, scheme, warmup, select_per="model", **settings)


def compensated(one: Averager, x: Arrays) -> Arrays:
    """What the selection sees of the parameters that travel sparse."""
    memory = one.settings.schedule.scheme.memory
    zeros = {name: {buffer: np.zeros_like(x[name]) for buffer in memory.buffers} for name in x}
    return {
        name: memory.total(one.states.by_name.get(name, zeros[name]), x[name]).copy()
        for name in x
        if one.settings.is_sparse(name, x[name].size)
    }


def spy(one: Averager) -> dict[str, sw.Sparse]:
    """What the averager's exchanges send from now on."""
    sent: dict[str, sw.Sparse] = {}
    run = type(one)._run

    def watched(offers: list[Selected], context: Any) -> Any:
        outcomes = run(one, offers, context)
        sent.update({offer.piece.name: outcome.sent for offer, outcome in zip(offers, outcomes, strict=True)})
        return outcomes

    one._run = watched  # type: ignore[method-assign]
    return sent
