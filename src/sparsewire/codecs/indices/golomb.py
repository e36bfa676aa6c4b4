"""`golomb`: the gaps between indices, Rice-coded with the one parameter that suits the tensor's density.

As Sparse Binary Compression has it (Sattler et al., arXiv 1805.08768): b* = 1 + ⌊log2(ln(φ − 1) / ln(1 − p))⌋ with
p = k/d, which is the smallest b ≥ 0 with (1 − p)^(2^b) < φ − 1. The decoder finds b* from count and size, so that
nothing but the codes is sent; both find it by whole numbers, as logarithms differ between platforms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, join
from sparsewire.kernels import Array, Bytes

from ..contract import Context, IndexCodec

FRACTION = 128  # bits of a number below 1
GOLDEN = (math.isqrt(5 << 2 * FRACTION) - (1 << FRACTION)) // 2  # φ − 1


def golomb_parameter(numel: int, count: int) -> int:
    """b*, the cheapest number of low bits for gaps of `count` entries spread evenly over `numel`.

    >>> [golomb_parameter(10**6, k) for k in (100_000, 10_000, 1_000, 100)]
    [3, 6, 9, 13]
    """
    rest = ((numel - count) << FRACTION) // max(numel, 1)  # 1 − p
    b = 0
    while rest >= GOLDEN and count:
        rest = rest * rest >> FRACTION
        b += 1
    return b


@dataclass(frozen=True)
class Golomb(IndexCodec):
    """Golomb codes of the gaps, with a parameter that follows from the density: nothing but the codes is sent."""

    id = "golomb"
    wire_id = 9

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        if not indices.size:
            return b"", indices
        b, gaps = golomb_parameter(ctx.numel, indices.size), kernels.gaps(indices)
        ends = np.cumsum((gaps >> gaps.dtype.type(b)).astype(np.int64) + 1) - 1
        return join(kernels.pack_bits(gaps, b), kernels.bitmap(ends, int(ends[-1]) + 1)), indices

    def decode(self, body: memoryview, ctx: Context) -> Array:
        wide = kernels.index_dtype(ctx.numel).itemsize == 8
        low, unary = self._streams(body, ctx)
        parameters = np.full(min(ctx.count, 1), golomb_parameter(ctx.numel, ctx.count), np.uint8)
        gaps = kernels.rice_decode(parameters, low, unary, ctx.count, max(ctx.count, 1), wide)
        return kernels.from_gaps(gaps, ctx.numel)

    def estimate(self, indices: Array, ctx: Context) -> int:
        if not indices.size:
            return 0
        b, gaps = golomb_parameter(ctx.numel, indices.size), kernels.gaps(indices)
        unary = int((gaps >> gaps.dtype.type(b)).sum(dtype=np.uint64)) + gaps.size
        return (gaps.size * b + 7) // 8 + (unary + 7) // 8

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        low, unary = self._streams(body, ctx)
        return {"low": low.size, "unary": unary.size}

    @staticmethod
    def _streams(body: memoryview, ctx: Context) -> tuple[Bytes, Bytes]:
        reader = Reader(body)
        low = reader.bytes((ctx.count * golomb_parameter(ctx.numel, ctx.count) + 7) // 8)
        return low, reader.rest()
