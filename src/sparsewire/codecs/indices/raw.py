"""`raw`: the indices uncompressed, 4 bytes each (8 where a tensor has more than 2³¹ elements)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import array, join
from sparsewire.kernels import Array

from ..contract import Context, IndexCodec


@dataclass(frozen=True)
class RawIndices(IndexCodec):
    """Indices as integers."""

    id = "raw"
    wire_id = 1
    carries_order = True

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        return join(indices), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        indices = array(body, kernels.index_dtype(ctx.numel).str, copy=True)
        if indices.size != ctx.count:
            raise ValueError(f"{indices.size} indices, not {ctx.count}")
        if ctx.ordered:
            return indices  # the caller sorts them and rejects repeats
        if indices.size and not (indices[0] >= 0 and indices[-1] < ctx.numel and (np.diff(indices) > 0).all()):
            raise ValueError("the indices do not ascend below the number of elements")
        return indices

    def estimate(self, indices: Array, ctx: Context) -> int:
        return indices.nbytes
