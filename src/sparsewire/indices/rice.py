"""`rice`: the gaps between indices, Rice-coded with a parameter per block.

On uniform indices a Rice code of the right parameter is within half a percent of the entropy; real gradients cluster,
and a parameter per block follows that. Three streams (parameters, low bits, unary bits) make decoding vector work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .. import kernels
from ..binary import Reader, join, varint
from ..contract import Context, IndexCodec
from ..kernels import Array, Bytes


def rice_body(values: Array, block: int) -> bytes:
    """Unsigned integers → the "Rice body" of docs/FORMAT.md."""
    if not values.size:
        return b""
    parameters, low, unary = kernels.rice_encode(values, block)
    packed = _pack_parameters(parameters)
    return join(varint(packed.size), packed, low, unary)


def read_rice_body(body: memoryview, count: int, block: int, wide: bool) -> Array:
    parameters, low, unary = _streams(body, count, block)
    return kernels.rice_decode(parameters, low, unary, count, block, wide)


def _pack_parameters(parameters: Bytes) -> Bytes:
    change = np.diff(parameters.astype(np.int64), prepend=0)
    folded = np.where(change < 0, -2 * change - 1, 2 * change)
    ends = np.cumsum(folded + 1) - 1
    return kernels.bitmap(ends, int(ends[-1]) + 1)


def _unpack_parameters(packed: Bytes, blocks: int) -> Bytes:
    bits = 8 * packed.size
    if blocks > bits:
        raise ValueError(f"{blocks} Rice parameters do not fit {packed.size} bytes")
    ends = kernels.from_bitmap(packed, bits, blocks).astype(np.int64)
    if (ends[-1] + 8) // 8 != packed.size:
        raise ValueError("the Rice parameters end early")
    folded = np.diff(ends, prepend=-1) - 1
    parameters = np.cumsum(np.where(folded & 1, -(folded + 1) // 2, folded // 2))
    if parameters.min() < 0 or parameters.max() > 63:
        raise ValueError("a Rice parameter is out of range")
    return parameters.astype(np.uint8)


def _streams(body: memoryview, count: int, block: int) -> tuple[Bytes, Bytes, Bytes]:
    reader = Reader(body)
    if count == 0:
        return reader.bytes(0), reader.bytes(0), reader.rest()
    parameters = _unpack_parameters(reader.bytes(reader.varint()), -(-count // block))
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
