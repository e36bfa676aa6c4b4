"""`entropy`: as few bits as a wanted error allows: uniform cells, their means, and an entropy coder behind.

Entropy-coded uniform quantization is within a quarter of a bit of what any scalar code can reach (Gish and Pierce,
1968). Here:

1. Magnitudes are put on a grid that starts at the smallest one (top-k leaves a gap around zero) and is just fine enough
   for the wanted error (`grid`); a cell is stood for by the mean of what is in it.
2. A cell is a symbol and extra bits, as in `huffman`: single cells near the start, then classes that double. How many
   classes, and how many low bits are sent as they are, is what costs the least for the histogram at hand.
3. The symbols go through rANS, which needs no whole bits; the sign is an extra bit, or part of the symbol where it is
   skewed.

Rounding is to the nearest point and so not unbiased, unlike `qsgd`: a residual makes up for it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..binary import Reader, from_short, join, to_short, varint
from ..contract import Context, ValueCodec
from ..kernels import LATTICE_BINS, Array, Bytes
from ..sparse import LARGEST, load, store, work_dtype
from . import frequencies
from .grid import LISTED, Fit, Grid, find_grid, two_levels
from .raw import STORED, read

RAW, NONE_NEGATIVE, NONE_POSITIVE, SIGN_BIT, SIGN_IN_SYMBOL, MAGNITUDE, LEVELS = range(7)
KERNEL_SIGNS = {NONE_NEGATIVE: 0, NONE_POSITIVE: -1, SIGN_BIT: 1, SIGN_IN_SYMBOL: 2}
ZERO, NOT_FINITE = -1, -2
TABLE_BITS = 3.0  # what a symbol's entry costs, about
_BIN = np.arange(LATTICE_BINS)
_LOWEST_CELL = np.where(_BIN < 32, _BIN, (32 + _BIN % 32) << np.maximum(_BIN // 32 - 1, 0))


@dataclass(frozen=True)
class Layout:
    """How cells become symbols: `shift` low bits as they are, 2^precision classes to the octave, where signs go."""

    signs: int
    shift: int
    precision: int

    def symbols(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """How often each symbol comes, by the histogram's counts above and below 0."""
        kinds = _bins(self.shift, self.precision)[0]
        if self.signs == SIGN_IN_SYMBOL:
            inside = np.bincount((2 * kinds[:, None] + (0, 1)).reshape(-1), counts[:LATTICE_BINS].reshape(-1))
        else:
            inside = np.bincount(kinds, counts[:LATTICE_BINS, 0] + counts[:LATTICE_BINS, 1])
        all_of = np.concatenate([counts[LATTICE_BINS:, 0], inside.astype(np.int64)])
        return all_of[: int(all_of.nonzero()[0].max(initial=0)) + 1]

    def tables(self, steps: Bytes) -> tuple[Array, Bytes]:
        """(first cell, extra bits) of each symbol; `ValueError` for one that comes and has no place on a grid."""
        kinds = np.maximum(0, np.arange(steps.size) - 2) >> (self.signs == SIGN_IN_SYMBOL)
        below = np.maximum(0, (kinds >> self.precision) - 1)
        inside = below + self.shift <= 22
        width = np.where(inside, below + self.shift, 0)
        lowest = np.where(inside, kinds - (below << self.precision), 0) << width
        if (steps.astype(bool) & (~inside | (lowest + (1 << width) >= 2**23))).any():
            raise ValueError("a symbol stands for cells beyond the grid")
        lowest = np.minimum(lowest, 2**22).astype("i4")
        lowest[:2] = (ZERO, NOT_FINITE)[: steps.size]
        widths = (width + (self.signs == SIGN_BIT)).astype(np.uint8)
        widths[:2] = 0
        return lowest, widths


@functools.cache
def _bins(shift: int, precision: int) -> tuple[Array, Array]:
    """(class, extra bits) of each bin of the histogram."""
    kinds, below = kernels.log_linear(_LOWEST_CELL >> shift, precision)
    return kinds, below + shift


def choose(counts: NDArray[np.int64]) -> Layout:
    """The layout that costs the least: first with signs apart, then the sign goes into the symbol if that pays."""
    per_bin = counts[:LATTICE_BINS, 0] + counts[:LATTICE_BINS, 1]
    used = int(per_bin.nonzero()[0].max(initial=0)) + 1
    per_bin, outside = per_bin[:used], counts[LATTICE_BINS:, 0]
    options = ((_cost(per_bin, outside, *option), option) for option in _options(per_bin))
    cost, (shift, precision) = min(options)
    under = int(counts[:used, 1].sum())
    if under in (0, int(per_bin.sum())):
        return Layout(NONE_POSITIVE if under else NONE_NEGATIVE, shift, precision)
    folded = Layout(SIGN_IN_SYMBOL, shift, precision).symbols(counts)
    extra = int(per_bin @ _bins(shift, precision)[1][:used])
    smaller = folded.size <= frequencies.MOST_SYMBOLS and _bits(folded) + extra < cost + int(per_bin.sum())
    return Layout(SIGN_IN_SYMBOL if smaller else SIGN_BIT, shift, precision)


def _options(per_bin: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(shift, precision): classes for about 8 to 32 steps up to the mean cell; finer ones cost table, not bits."""
    mean = int(per_bin @ _LOWEST_CELL[: per_bin.size]) // max(1, int(per_bin.sum()))
    middle = max(0, mean.bit_length() - 4)
    for shift in range(max(0, middle - 1), middle + 2):
        for precision in range(1, 5):
            yield shift, precision


def _cost(per_bin: NDArray[np.int64], outside: NDArray[np.int64], shift: int, precision: int) -> float:
    """About how many bits all but the signs take; infinite for too many symbols."""
    kinds, extra = (column[: per_bin.size] for column in _bins(shift, precision))
    if int(kinds[-1]) + 3 > frequencies.MOST_SYMBOLS:
        return np.inf
    return _bits(np.concatenate([outside, np.bincount(kinds, per_bin)])) + int(per_bin @ extra)


def _bits(counts: Array) -> float:
    """The entropy of symbols that come so often, and their table."""
    some = counts[counts > 0]
    return float(some @ np.log2(some.sum() / some)) + TABLE_BITS * counts.size


@dataclass(frozen=True)
class Section:
    """A section taken apart; nothing in it is trusted yet but the lengths."""

    layout: Layout
    grid: Grid
    resolution: int
    steps: Bytes
    stream: Bytes
    extra: Bytes

    @classmethod
    def read(cls, reader: Reader, count: int) -> Section:
        first, second = reader.byte(), reader.byte()
        layout, resolution = Layout(first & 7, second & 31, first >> 3 & 7), second >> 5
        if not (RAW < layout.signs <= SIGN_IN_SYMBOL and layout.precision <= 5 and layout.shift <= 22):
            raise ValueError("a layout is out of range")
        start, unit, listed = struct.unpack("<HHB", reader.take(5))
        if listed > LISTED or start >= 0x7F80 or not 0 < unit < 0x7F80:
            raise ValueError("a grid is out of range")
        grid = Grid(from_short(start), from_short(unit), reader.bytes(listed + 1))
        steps = cls._steps(reader, first >> 6, resolution)
        size = reader.varint()
        if np.count_nonzero(steps) > 1:
            return cls(layout, grid, resolution, steps, reader.bytes(size), reader.rest())
        if size != count:
            raise ValueError("the section has another count than the header")
        return cls(layout, grid, resolution, steps, reader.bytes(0), reader.rest())

    @staticmethod
    def _steps(reader: Reader, outside: int, resolution: int) -> Bytes:
        """The table; `outside` says which of the first two symbols, zero and not finite, are in it."""
        symbols = reader.byte()
        sent = frequencies.unpack(reader.bytes(reader.varint()), symbols, resolution)
        steps = np.zeros(symbols + 2 - outside.bit_count(), np.uint8)
        kept = [0] * (outside & 1) + [1] * (outside >> 1)
        if symbols < len(kept):
            raise ValueError("a table of frequencies is too short")
        steps[kept], steps[2:] = sent[: len(kept)], sent[len(kept) :]
        return steps

    def write(self, count: int) -> bytes:
        layout, grid, steps = self.layout, self.grid, self.steps
        outside = steps[:2].astype(bool)
        shorts = struct.pack("<HHB", to_short(grid.start), to_short(grid.unit), grid.offsets.size - 1)
        sent = np.concatenate([steps[:2][outside], steps[2:]])
        table = frequencies.pack(sent, self.resolution)
        size = self.stream.size if np.count_nonzero(steps) > 1 else count
        flags = sum(1 << 6 + place for place in outside.nonzero()[0].tolist())
        head = bytes([layout.signs | layout.precision << 3 | flags, layout.shift | self.resolution << 5])
        sizes = bytes([sent.size]) + varint(table.size)
        return join(head, shorts, grid.offsets, sizes, table, varint(size), self.stream, self.extra)


@dataclass(frozen=True)
class Entropy(ValueCodec):
    """Few bits for a wanted relative L2 error (before numbers are rounded to the tensor's dtype).

    What is not finite becomes NaN. Numbers that do not suit (a few, or beyond float32) are sent as they are.
    """

    id = "entropy"
    wire_id = 10

    error: float = 0.05

    def check(self) -> None:
        self.expect(0.001 <= self.error <= 0.5, "error lies in 0.001 … 0.5 (0.1 % … 50 %)")

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        body, approx = self._coded(values, ctx) if self._may_gain(ctx) else (b"", values)
        if 0 < len(body) < self.size_limit(ctx):
            return body, approx
        stored = store(values, ctx.dtype)
        return join(bytes([RAW]), stored), load(stored, ctx.dtype)

    def decode(self, body: memoryview, ctx: Context) -> Array:
        if not ctx.count or body[:1] == bytes([RAW]):
            return read(body[1 if ctx.count else 0 :], ctx.dtype, ctx.count)
        if body[0] in (MAGNITUDE, LEVELS):
            return _on_levels(body, ctx)
        section = Section.read(Reader(body), ctx.count)
        shares = frequencies.frequencies(section.steps, section.resolution)
        if np.count_nonzero(section.steps) > 1:
            symbols = kernels.rans_decode(section.stream, shares, ctx.count)
        else:
            symbols = np.full(ctx.count, np.argmax(shares), np.uint8)
        tables = section.layout.tables(section.steps)
        codes = kernels.lattice_join(symbols, section.extra, *tables, KERNEL_SIGNS[section.layout.signs])
        return _points(codes, section.grid, ctx)

    def size_limit(self, ctx: Context) -> int:
        return ctx.count and 1 + ctx.count * int(STORED[ctx.dtype][-1])

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        if not ctx.count or body[0] in (RAW, MAGNITUDE, LEVELS):
            return {}
        section = Section.read(Reader(body), ctx.count)
        known = section.stream.size + section.extra.size
        return {"table": len(body) - known, "symbols": section.stream.size, "extra": section.extra.size}

    def _may_gain(self, ctx: Context) -> bool:
        return self.size_limit(ctx) > 14  # no coded section is shorter

    def _coded(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        """On two levels, on a grid, or the smaller where signs are skewed; no bytes where the values suit neither."""
        levels, under = two_levels(values, self.error), int(np.count_nonzero(np.signbit(values)))
        fit = None if levels and 3 * min(under, values.size - under) >= values.size else find_grid(values, self.error)
        found = [self._on_grid(fit, ctx)] if fit else []
        if levels:
            body = _with_levels(*levels, values)
            found.append((body, _on_levels(memoryview(body), ctx)))
        return min(found, key=lambda one: len(one[0]), default=(b"", values))

    @staticmethod
    def _on_grid(fit: Fit, ctx: Context) -> tuple[bytes, Array]:
        layout, resolution = choose(fit.counts), 1 if ctx.count < 4096 else 2
        steps = frequencies.weigh(layout.symbols(fit.counts), resolution)
        symbols, extra = kernels.lattice_split(fit.codes, layout.shift, layout.precision, KERNEL_SIGNS[layout.signs])
        single = np.count_nonzero(steps) == 1
        shares = frequencies.frequencies(steps, resolution)
        stream = symbols[:0] if single else kernels.rans_encode(symbols, shares)
        section = Section(layout, fit.grid, resolution, steps, stream, extra)
        return section.write(ctx.count), _points(fit.codes, fit.grid, ctx)


def _with_levels(high: float, low: float, values: Array) -> bytes:
    """A bit for each that is on the lower level; where there is but one, how many are."""
    head = struct.pack("<Bf", MAGNITUDE, high) if low == -high else struct.pack("<Bff", LEVELS, high, low)
    which = kernels.pack_bits(np.signbit(values).astype(np.uint32), 1) if high != low else varint(values.size)
    return join(head, which)


def _on_levels(body: memoryview, ctx: Context) -> Array:
    reader, dtype = Reader(body), work_dtype(ctx.dtype)
    kind = reader.byte()
    (high,) = struct.unpack("<f", reader.take(4))
    low = -high if kind == MAGNITUDE else struct.unpack("<f", reader.take(4))[0]
    if not -LARGEST[ctx.dtype] <= low <= high <= LARGEST[ctx.dtype]:
        raise ValueError("levels are out of order or out of range")
    if low < high:
        return np.array([high, low], dtype)[kernels.unpack_bits(reader.rest(), 1, ctx.count)]
    if reader.varint() != ctx.count or reader.left:
        raise ValueError("the section has another count than the header")
    return np.full(ctx.count, high, dtype)


def _points(codes: NDArray[np.int32], grid: Grid, ctx: Context) -> Array:
    """In the memory of the codes where they fit, which are gone then: fresh pages cost more than the points do."""
    dtype = work_dtype(ctx.dtype)
    out = codes.view(dtype) if dtype.itemsize == codes.itemsize else np.empty(codes.size, dtype)
    kernels.lattice_points(out, codes, grid.start, grid.unit, grid.offsets, LARGEST[ctx.dtype])
    return out
