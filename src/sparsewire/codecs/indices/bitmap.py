"""`bitmap`: one bit per element; the smallest where more than about a third of the elements are entries."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.core.binary import array, join
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from ..contract import Context, IndexCodec

MOST = 2**36


@dataclass(frozen=True)
class Bitmap(IndexCodec):
    """A bit for every element."""

    id = "bitmap"
    wire_id = 2

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        if ctx.numel > MOST:
            raise InputError(f"a bitmap of {ctx.numel} elements is too large; use indices=rice")
        return join(kernels.bitmap(indices, ctx.numel if indices.size else 0)), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        return kernels.from_bitmap(array(body), ctx.numel if ctx.count else 0, ctx.count).astype(
            kernels.index_dtype(ctx.numel), copy=False
        )

    def estimate(self, indices: Array, ctx: Context) -> int:
        return (ctx.numel + 7) // 8 if ctx.numel <= MOST else 2**63
