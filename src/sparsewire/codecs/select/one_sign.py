"""`one_sign`: the k largest entries of one sign, as Sparse Binary Compression selects (arXiv 1805.08768)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context, Terms
from .topk import Counted


@dataclass(frozen=True)
class OneSign(Counted):
    """The k largest positive entries or the k most negative, whichever have the larger mean magnitude.

    Ties go to the lowest index, equal means to the positive ones. There are fewer than k where fewer have that sign
    (the missing ones count as zeros in its mean): zeros are never sent. What is not finite is sent alone, all of it.
    """

    id = "one_sign"
    wire_id = 5

    def count(self, numel: int) -> int:
        """k, or the ratio of the elements rounded up: the ratio that was written, not the nearest binary one."""
        if self.ratio is None:
            return super().count(numel)
        return min(numel, math.ceil(Fraction(str(self.ratio)) * numel))

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        indices, values = kernels.one_sign(x, self.count(x.size), threads=kernels.threads)
        if kernels.all_finite(values):
            return indices, values
        return kernels.threshold(x, kernels.magnitude_edge(np.inf, x.dtype), threads=kernels.threads)

    def pick_sum(self, terms: Terms, x: Array, ctx: Context) -> tuple[Array, Array]:
        count = self.count(x.size)
        indices, values = kernels.one_sign_sum(
            terms.residual, x, count, terms.decay, terms.gain, threads=kernels.threads
        )
        if kernels.all_finite(values):
            return indices, values
        return super().pick_sum(terms, x, ctx)
