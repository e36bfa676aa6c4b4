"""A step's mean, as the momentum of the next step needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Entries
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense, landed

from ..places import BLOCK, in_cache, same_memory

LEAST_RATE = 1e-30  # a smaller one counts as zero


@dataclass(frozen=True)
class StepMean:
    """A step's mean and the learning rate that it was applied with, if that is known.

    It is sparse: what is zero is in no sum. Where it is dense it is kept as it is, without indices.
    """

    indices: Array | None
    values: Array
    rate: float | None = None

    @property
    def entries(self) -> Entries:
        if self.indices is not None:
            return self.indices, self.values
        return kernels.of(self.values).threshold(self.values, 1)

    def add_to(self, out: Dense, factor: float) -> None:
        if self.indices is None and same_memory(self.values, out):
            _add_dense(out, self.values, factor) if kernels.on_host(out) else out.add_nonzero(self.values, factor)
        else:
            ((indices, values),) = landed([self.entries])
            kernels.of(out).scatter_add(out, indices, values, factor)

    def scaled(self, factor: float) -> StepMean:
        if not kernels.on_host(self.values):
            values = self.values.copy()
            values *= factor
            return replace(self, values=values)
        indices, values = self.entries
        return replace(self, indices=indices, values=values * float(factor))

    def change(self, rate: float | None) -> float:
        """η_{t−1}/η_t − 1: how the movement that it caused counts at another rate.

        At a rate of zero nothing moves and no quotient exists: the rate counts as unchanged. What was sent at a rate of
        zero has moved nothing, so nothing of it is left afterwards (−1).
        """
        if self.rate is None or rate is None or rate < LEAST_RATE:
            return 0.0
        return self.rate / rate - 1 if self.rate >= LEAST_RATE else -1.0


def _add_dense(out: Array, values: Array, factor: float) -> None:
    """out += factor · values, as if the zeros among the values were left out: −0 stays −0 there."""
    kind, added = out.dtype.type, np.empty(min(BLOCK, out.size), out.dtype)
    with np.errstate(all="ignore"):
        for part in in_cache(out):
            term, there = added[: values[part].size], out[part]
            if math.copysign(1, factor) < 0:  # the term of a zero is −0, which adds nothing
                np.add(values[part], kind(0), out=term)
                term *= kind(factor)
                there += term
            else:  # it is +0, which takes nothing away
                np.subtract(kind(0), values[part], out=term)
                term *= kind(factor)
                there -= term
