"""`centroid`: a few numbers for all values, each the mean of those it stands for (SparseLoCo, arXiv 2508.15706)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join
from sparsewire.core.sparse import store, work_dtype
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec
from . import codes as packing

GLANCE = 4096  # values that tell, mostly, whether there are few different ones


@dataclass(frozen=True)
class Centroid(ValueCodec):
    """2^bits even steps over six standard deviations, each sent as the mean of its values.

    With at most 2^bits different values it is exact: those are the codebook. Where a value is not finite, all are NaN.
    """

    id = "centroid"
    wire_id = 13

    bits: int = 2

    def check(self) -> None:
        self.expect(1 <= self.bits <= 8, "bits lies in 1 … 8")

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        numbers, codes = self._codebook(values)
        book = store(numbers, work_dtype(ctx.dtype).name)
        return join(bytes([book.size - 1]), book, packing.pack(codes.astype(np.uint32), self.bits, ctx)), book[codes]

    def decode(self, body: memoryview, ctx: Context) -> Array:
        book, packed = self._streams(body, ctx)
        return kernels.lookup(packing.unpack(packed, self.bits, ctx), book)

    def size_limit(self, ctx: Context) -> int:
        return ctx.count and 1 + 2**self.bits * work_dtype(ctx.dtype).itemsize + packing.size(self.bits, ctx)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        codes = len(self._streams(body, ctx)[1])
        return {"codebook": len(body) - codes, "codes": codes}

    def _streams(self, body: memoryview, ctx: Context) -> tuple[Array, memoryview]:
        reader, dtype = Reader(body), work_dtype(ctx.dtype)
        size = reader.byte() + 1 if ctx.count else 0
        if size > 2**self.bits:
            raise ValueError(f"a codebook of {size} numbers, {self.bits} bits count {2**self.bits}")
        book = array(reader.take(size * dtype.itemsize), dtype.str)
        if np.isinf(book).any():
            raise ValueError("a number of the codebook is infinite")
        return book, reader.take(reader.left)

    def _codebook(self, values: Array) -> tuple[Array, Array]:
        """(numbers, which of them every value is)."""
        if not kernels.all_finite(values):
            return np.array([np.nan]), np.zeros(values.size, np.intp)
        if np.unique(values[:GLANCE]).size <= 2**self.bits:
            different, codes = np.unique(values, return_inverse=True)
            if different.size <= 2**self.bits:
                return different + different.dtype.type(0), codes.reshape(-1)
        return self._steps(values)

    def _steps(self, values: Array) -> tuple[Array, Array]:
        """1. Values as multiples of the largest magnitude, in float64; sums go by ascending index.
        2. shift = mean, step = 6σ / 2^bits, code = round((x − shift)/step + 2^bits/2), held within 0 … 2^bits − 1.
        3. Each code that occurs stands for the mean of its values; those are numbered anew.
        """
        levels, top = 2**self.bits, float(np.abs(values).max())
        x = values.astype(np.float64) / top
        off = x - np.add.accumulate(x)[-1] / x.size
        step = 6 * np.sqrt(np.add.accumulate(off * off)[-1] / (x.size - 1)) / levels
        codes = np.clip(np.rint(off / step + levels / 2), 0, levels - 1).astype(np.intp)
        counts, sums = np.bincount(codes, minlength=levels), np.bincount(codes, weights=x, minlength=levels)
        used = counts > 0
        return sums[used] / counts[used] * top, (np.cumsum(used) - 1)[codes]
