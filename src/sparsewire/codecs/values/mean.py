"""`mean` and `sign_mean`: one magnitude for all entries.

Sparse Binary Compression (arXiv 1805.08768) sends the mean of entries that have one sign, Sparse Ternary Compression
(arXiv 1903.02891) the mean magnitude and a sign for each. Error feedback takes up the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join
from sparsewire.core.sparse import store, work_dtype
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec
from . import sums


def _one_number(values: Array, ctx: Context) -> Array:
    """The mean as it is sent; NaN where a value is not finite."""
    mean = sums.mean(values) if kernels.all_finite(values) else np.nan
    return store(np.array([mean]), work_dtype(ctx.dtype).name)


def _read_number(reader: Reader, ctx: Context) -> Array:
    dtype = work_dtype(ctx.dtype)
    return array(reader.take(dtype.itemsize if ctx.count else 0), dtype.str, copy=True)


@dataclass(frozen=True)
class Mean(ValueCodec):
    """Every entry is sent as the mean of all: one number. Where a value is not finite it is NaN."""

    id = "mean"
    wire_id = 11

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        number = _one_number(values, ctx)
        return join(number), np.full(values.size, number[0])

    def decode(self, body: memoryview, ctx: Context) -> Array:
        reader = Reader(body)
        number = _read_number(reader, ctx)
        if reader.left:
            raise ValueError("there is more than one number")
        # Without memory of its own, until the indices have shown that there are as many entries.
        return np.broadcast_to(number, ctx.count)

    def size_limit(self, ctx: Context) -> int:
        return work_dtype(ctx.dtype).itemsize if ctx.count else 0


@dataclass(frozen=True)
class SignMean(ValueCodec):
    """Every entry is sent as its sign and the mean magnitude of all; NaN where a value is not finite."""

    id = "sign_mean"
    wire_id = 12

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        number, negative = _one_number(np.abs(values), ctx), values < 0
        signs = kernels.pack_bits(negative.astype(np.uint32), 1)
        return join(number, signs), np.where(negative, -number, number)

    def decode(self, body: memoryview, ctx: Context) -> Array:
        reader = Reader(body)
        number = _read_number(reader, ctx)
        if (number < 0).any():
            raise ValueError("a magnitude is negative")
        negative = kernels.unpack_bits(reader.rest(), 1, ctx.count)
        return np.concatenate([number, -number])[negative] if ctx.count else number

    def size_limit(self, ctx: Context) -> int:
        return (ctx.count + 7) // 8 + work_dtype(ctx.dtype).itemsize if ctx.count else 0

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        number = _read_number(Reader(body), ctx).nbytes
        return {"magnitude": number, "signs": len(body) - number}
