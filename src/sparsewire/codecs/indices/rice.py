"""`rice`: the gaps between indices, Rice-coded with a parameter per block.

On uniform indices a Rice code of the right parameter is within half a percent of the entropy; real gradients cluster,
and a parameter per block follows that. Three streams (parameters, low bits, unary bits) make decoding vector work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, join, varint
from sparsewire.kernels import Array, Bytes

from ..contract import Context, IndexCodec


def rice_body(values: Array, block: int) -> bytes:
    """Unsigned integers → the "Rice body" of docs/reference/format.md."""
    if not values.size:
        return b""
    parameters, low, unary = kernels.rice_encode(values, block)
    packed = kernels.pack_deltas(parameters)
    return join(varint(packed.size), packed, low, unary)


def read_rice_body(body: memoryview, count: int, block: int, wide: bool) -> Array:
    parameters, low, unary = _streams(body, count, block)
    return kernels.rice_decode(parameters, low, unary, count, block, wide)


def _streams(body: memoryview, count: int, block: int) -> tuple[Bytes, Bytes, Bytes]:
    reader = Reader(body)
    if count == 0:
        return reader.bytes(0), reader.bytes(0), reader.rest()
    parameters = kernels.unpack_deltas(reader.bytes(reader.varint()), -(-count // block))
    last = count - block * (parameters.size - 1)
    low_bits = block * int(parameters[:-1].sum(dtype=np.int64)) + last * int(parameters[-1])
    return parameters, reader.bytes((low_bits + 7) // 8), reader.rest()


@dataclass(frozen=True)
class Rice(IndexCodec):
    """Block-adaptive Rice codes of the gaps."""

    id = "rice"
    wire_id = 6

    block: int = 32

    def check(self) -> None:
        self.expect(8 <= self.block <= 1024 and self.block % 8 == 0, "block is a multiple of 8 in 8 … 1024")

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        return rice_body(kernels.gaps(indices), self.block), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        wide = kernels.index_dtype(ctx.numel).itemsize == 8
        return kernels.from_gaps(read_rice_body(body, ctx.count, self.block, wide), ctx.numel)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        _, low, unary = _streams(body, ctx.count, self.block)
        return {"parameters": len(body) - low.size - unary.size, "low": low.size, "unary": unary.size}
