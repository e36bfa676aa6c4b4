"""`randomk`: k elements drawn without replacement from a keyed permutation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context
from .topk import Counted


@dataclass(frozen=True)
class RandomK(Counted):
    """Random entries; with `shared` every rank draws the same ones. What is not finite is sent besides."""

    id = "randomk"
    wire_id = 2

    shared: bool = True

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        draw = np.arange(self.count(x.size), dtype=np.uint64)
        drawn = kernels.permute(draw, x.size, ctx.key if self.shared else ctx.own_key)
        indices = np.sort(drawn.astype(kernels.index_dtype(x.size)))
        if not self.takes_nothing and not kernels.all_finite(x, threads=kernels.threads):
            indices = np.union1d(indices, kernels.threshold(x, kernels.magnitude_edge(np.inf, x.dtype))[0])
        return indices, x[indices]
