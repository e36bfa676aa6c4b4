"""`elias_fano`: low bits packed, high bits in unary; at most 2 + log2(d/k) bits an entry for any indices.

It has no parameters to send, so of what `best` chooses from it is the smallest for up to about 30 entries: the
selections of biases, norms and other small tensors. For more entries `rice` and `huffman` are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsewire import kernels
from sparsewire.core.binary import Reader, join
from sparsewire.kernels import Array

from ..contract import Context, IndexCodec


@dataclass(frozen=True)
class EliasFano(IndexCodec):
    """Low bits as they are, high bits in unary (Elias 1974, Fano 1971); the smallest for a few entries."""

    id = "elias_fano"
    wire_id = 5

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        return join(*kernels.elias_fano_encode(indices, ctx.numel)), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        reader = Reader(body)
        low = reader.bytes(self._low_bytes(ctx))
        return kernels.elias_fano_decode(low, reader.rest(), ctx.numel, ctx.count)

    def estimate(self, indices: Array, ctx: Context) -> int:
        if not indices.size:
            return 0
        width = kernels.elias_fano_width(ctx.numel, indices.size)
        return (indices.size * width + 7) // 8 + ((int(indices[-1]) >> width) + indices.size + 7) // 8

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        low = Reader(body).bytes(self._low_bytes(ctx)).size
        return {"low": low, "high": len(body) - low}

    def _low_bytes(self, ctx: Context) -> int:
        return (ctx.count * kernels.elias_fano_width(ctx.numel, ctx.count) + 7) // 8
