"""`quantile`: buckets of equal count, each sent as its mean, and Huffman codes of the buckets' numbers.

After SketchML and SKCompress (Jiang et al., SIGMOD 2018), for comparison. Where this differs: exact quantiles instead
of a sketch's, means instead of midpoints, and every sign has buckets of its own (`split`), so none changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join, varint
from sparsewire.core.sparse import work_dtype
from sparsewire.kernels import Array, Bytes

from ..contract import Context, ValueCodec
from . import sums


@dataclass(frozen=True)
class Quantile(ValueCodec):
    """`levels` buckets of equal count; non-finite values become NaN."""

    id = "quantile"
    wire_id = 9

    levels: int = 16
    split: bool = True

    def check(self) -> None:
        self.expect(2 <= self.levels <= 256, "levels lies in 2 … 256")

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        means, symbols = self._buckets(values)
        lengths = kernels.huffman_lengths(np.bincount(symbols, minlength=means.size))
        stream = kernels.huffman_encode(symbols, lengths)
        table = kernels.pack_bits(lengths.astype(np.uint32), 4)
        return join(varint(means.size), means, table, stream), means[symbols]

    def decode(self, body: memoryview, ctx: Context) -> Array:
        means, table, stream = self._streams(body, ctx)
        return means[kernels.huffman_decode(stream, table, ctx.count)] if ctx.count else means

    def size_limit(self, ctx: Context) -> int:
        return ctx.count and 2 + self.levels * (work_dtype(ctx.dtype).itemsize + 1) + 2 * ctx.count

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        means, _, stream = self._streams(body, ctx)
        return {"table": len(body) - means.nbytes - stream.size, "means": means.nbytes, "buckets": stream.size}

    def _streams(self, body: memoryview, ctx: Context) -> tuple[Array, Bytes, Bytes]:
        reader = Reader(body)
        size = reader.varint() if ctx.count else 0
        if size > self.levels or (ctx.count and not size):
            raise ValueError(f"{size} buckets, the scheme has {self.levels} levels")
        dtype = work_dtype(ctx.dtype)
        means = array(reader.take(size * dtype.itemsize), dtype.str)
        table = kernels.unpack_bits(reader.bytes((size + 1) // 2), 4, size).astype(np.uint8)
        if np.isinf(means).any() or (not ctx.count and reader.left):
            raise ValueError("a mean is infinite, or there is more than the header says")
        return means, table, reader.rest()

    def _buckets(self, values: Array) -> tuple[Array, Bytes]:
        """(each bucket's mean, the number of each value's bucket). Non-finite values have the last bucket, NaN."""
        finite = np.isfinite(values)
        order = np.argsort(np.where(finite, values, np.inf), kind="stable")[: np.count_nonzero(finite)]
        bounds = self._bounds(values[order], self.levels - (not finite.all()))
        means = [sums.mean(values[order[low:high]]) for low, high in itertools.pairwise(bounds)]
        symbols = np.full(values.size, min(len(means), 255), np.uint8)
        symbols[order] = np.repeat(np.arange(len(means)), np.diff(bounds)).astype(np.uint8)
        return np.array(means if finite.all() else [*means, np.nan], values.dtype), symbols

    def _bounds(self, ascending: Array, levels: int) -> list[int]:
        """Where buckets begin and end; with `split`, none reaches over zero."""
        count = ascending.size
        zero = int(np.searchsorted(ascending, 0)) if self.split and levels > 1 else 0
        lower = min(max((levels * zero + count // 2) // max(count, 1), zero > 0), levels - (zero < count))
        sides = [*_even(0, zero, lower), *_even(zero, count, levels - lower), count]
        return sorted(set(sides))


def _even(first: int, last: int, parts: int) -> list[int]:
    return [first + (last - first) * part // parts for part in range(parts)] if last > first else []
