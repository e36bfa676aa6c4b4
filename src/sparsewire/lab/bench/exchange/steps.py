"""The steps that `bench exchange` counts and times: one gradient per rank, with supports that are known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire.codecs.scheme import Scheme, scheme
from sparsewire.comm import Communicator
from sparsewire.exchange import Clock, ExchangeContext, Piece, average_dense
from sparsewire.kernels import Array
from sparsewire.planning.cost.model import DISJOINT, IDENTICAL
from sparsewire.planning.cost.timing import values

DENSE = "dense all_reduce"
SUPPORTS = (IDENTICAL, DISJOINT)


@dataclass(frozen=True)
class Workload:
    """Every rank has a gradient of `numel` elements, `entries` of them not zero; `codecs` are those of the scheme."""

    numel: int
    entries: int
    codecs: str

    def plan(self, exchange: str) -> Scheme | None:
        """The scheme; None for the dense baseline. It has no memory, so that supports stay what they are."""
        return None if exchange == DENSE else self.scheme(exchange)

    def scheme(self, exchange: str) -> Scheme:
        return scheme(f"topk(k={self.entries}) | {self.codecs} | memory=none | exchange={exchange}")

    def gradient(self, supports: str, rank: int, size: int) -> Array:
        """Values of 1 + |normal| with random signs, at the same entries on every rank or at none twice."""
        parts = size if supports == DISJOINT else 1
        indices = np.random.default_rng(0).choice(self.numel, parts * self.entries, replace=False)
        x = np.zeros(self.numel, np.float32)
        x[indices[(rank % parts) * self.entries :][: self.entries]] = values(self.entries, seed=rank)
        return x


def run_step(x: Array, plan: Scheme | None, comm: Communicator, step: int = 0) -> Clock:
    """The mean of x over the ranks, dense in an array of its own; the seconds of the exchange's stages."""
    mean, clock = x.copy() if plan is None else np.empty_like(x), Clock()
    if plan is None:
        average_dense([mean], comm)
        return clock
    piece = Piece("w", x, x.shape, x.dtype.name)
    (outcome,) = ExchangeContext(plan, comm, step, clock=clock).average([piece])
    with clock("accumulate"):
        outcome.mean_into(mean)
    return clock
