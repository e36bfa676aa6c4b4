"""`entropy`: as few bits as a wanted error allows: uniform cells, their means, and an entropy coder behind.

Entropy-coded uniform quantization is within a quarter of a bit of what any scalar code can reach (Gish and Pierce,
1968). Here:

1. Magnitudes are put on a grid that starts at the smallest one (top-k leaves a gap around zero) and is just fine enough
   for the wanted error (`lattice_fit`); a cell is stood for by the mean of what is in it.
2. A cell is a symbol and extra bits, as in `huffman`: single cells near the start, then classes that double. How many
   classes, and how many low bits are sent as they are, is what costs the least (`lattice_layout`).
3. The symbols go through rANS, which needs no whole bits; the sign is an extra bit, or part of the symbol where it is
   skewed.

Rounding is to the nearest point and so not unbiased, unlike `qsgd`: a residual makes up for it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..binary import Reader, from_short, join, to_short, varint
from ..contract import Context, ValueCodec
from ..kernels import Array, Bytes
from ..sparse import LARGEST, load, store, work_dtype
from .raw import STORED, read

RAW, NONE_NEGATIVE, NONE_POSITIVE, SIGN_BIT, SIGN_IN_SYMBOL, MAGNITUDE, LEVELS = range(7)
KERNEL_SIGNS = {NONE_NEGATIVE: 0, NONE_POSITIVE: -1, SIGN_BIT: 1, SIGN_IN_SYMBOL: 2}
WIRE_SIGNS = {kernel: wire for wire, kernel in KERNEL_SIGNS.items()}
LISTED = 16  # cells with an offset of their own, at most


class Layout(NamedTuple):
    """How cells become symbols: `shift` low bits as they are, 2^precision classes to the octave, where signs go."""

    shift: int
    precision: int
    signs: int  # as kernels count them


class Grid(NamedTuple):
    """Cells of 256 units from `start` on; `offsets` are the points in the first cells, the last for all others."""

    start: float
    unit: float
    offsets: Bytes


class Table(NamedTuple):
    """How often symbols come: the arguments of `ladder_decode`."""

    data: Bytes
    symbols: int
    outside: int
    resolution: int

    @classmethod
    def of(cls, counts: NDArray[np.int64], resolution: int) -> tuple[Table, NDArray[np.uint32]]:
        """The table, and the frequencies that it stands for."""
        data, shares = kernels.ladder_encode(counts, resolution)
        here = [count > 0 for count in counts[:2].tolist()]
        outside = sum(1 << place for place, comes in enumerate(here) if comes)
        return cls(data, counts.size - len(here) + sum(here), outside, resolution), shares


class Section(NamedTuple):
    """A section taken apart; nothing in it is trusted yet but the lengths and the table."""

    layout: Layout
    grid: Grid
    table: Table
    shares: NDArray[np.uint32]
    stream: Bytes
    extra: Bytes

    @classmethod
    def read(cls, reader: Reader, count: int) -> Section:
        first, second, start, unit, listed = struct.unpack("<BBHHB", reader.take(7))
        signs, precision, shift = first & 7, first >> 3 & 7, second & 31
        if not (RAW < signs <= SIGN_IN_SYMBOL and precision <= 5 and shift <= 22):
            raise ValueError("a layout is out of range")
        if listed > LISTED or start >= 0x7F80 or not 0 < unit < 0x7F80:
            raise ValueError("a grid is out of range")
        grid = Grid(from_short(start), from_short(unit), reader.bytes(listed + 1))
        symbols = reader.byte()
        table = Table(reader.bytes(reader.varint()), symbols, first >> 6, second >> 5)
        shares, size = kernels.ladder_decode(*table), reader.varint()
        if _single(shares) and size != count:
            raise ValueError("the section has another count than the header")
        stream = reader.bytes(0 if _single(shares) else size)
        return cls(Layout(shift, precision, KERNEL_SIGNS[signs]), grid, table, shares, stream, reader.rest())

    def write(self, count: int) -> bytes:
        (shift, precision, signs), grid, table = self.layout, self.grid, self.table
        first = WIRE_SIGNS[signs] | precision << 3 | table.outside << 6
        shorts = to_short(grid.start), to_short(grid.unit)
        head = struct.pack("<BBHHB", first, shift | table.resolution << 5, *shorts, len(grid.offsets) - 1)
        sizes = bytes([table.symbols]) + varint(len(table.data))
        size = varint(count if _single(self.shares) else len(self.stream))
        return join(head, grid.offsets, sizes, table.data, size, self.stream, self.extra)

    def codes(self, count: int) -> NDArray[np.int32]:
        if _single(self.shares):
            symbols = np.full(count, np.argmax(self.shares), np.uint8)
        else:
            symbols = kernels.rans_decode(self.stream, self.shares, count)
        return kernels.lattice_join(symbols, self.extra, *self.layout)


def _single(shares: NDArray[np.uint32]) -> bool:
    """Whether only one symbol comes: then there is no stream."""
    return np.count_nonzero(shares) == 1


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
        kind = Reader(body).byte() if ctx.count else RAW
        if kind == RAW:
            return read(body[1 if ctx.count else 0 :], ctx.dtype, ctx.count)
        if kind in (MAGNITUDE, LEVELS):
            return _on_levels(body, ctx)
        section = Section.read(Reader(body), ctx.count)
        return _points(section.codes(ctx.count), section.grid, ctx)

    def size_limit(self, ctx: Context) -> int:
        return ctx.count and 1 + ctx.count * int(STORED[ctx.dtype][-1])

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        if not ctx.count or Reader(body).byte() in (RAW, MAGNITUDE, LEVELS):
            return {}
        section = Section.read(Reader(body), ctx.count)
        known = section.stream.size + section.extra.size
        return {"table": len(body) - known, "symbols": section.stream.size, "extra": section.extra.size}

    def _may_gain(self, ctx: Context) -> bool:
        return self.size_limit(ctx) > 14  # no coded section is shorter

    def _coded(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        """On two levels, on a grid, or the smaller where signs are skewed; no bytes where the values suit neither."""
        levels = kernels.lattice_levels(values, self.error)
        fit = None if levels and _even(values) else kernels.lattice_fit(values, self.error)
        found = [_on_grid(Grid(*fit[:3]), *fit[3:], ctx)] if fit else []
        if levels:
            body = _with_levels(*levels, values)
            found.append((body, _on_levels(memoryview(body), ctx)))
        return min(found, key=lambda one: len(one[0]), default=(b"", values))


def _on_grid(grid: Grid, codes: NDArray[np.int32], counts: NDArray[np.int64], ctx: Context) -> tuple[bytes, Array]:
    *layout, often = kernels.lattice_layout(counts)
    table, shares = Table.of(often, 1 if ctx.count < 4096 else 2)
    symbols, extra = kernels.lattice_split(codes, *layout)
    stream = symbols[:0] if _single(shares) else kernels.rans_encode(symbols, shares)
    section = Section(Layout(*layout), grid, table, shares, stream, extra)
    return section.write(ctx.count), _points(codes, grid, ctx)


def _even(values: Array) -> bool:
    """Whether at least a third have either sign: a bit for each is about what signs take then."""
    under = int(np.count_nonzero(np.signbit(values)))
    return 3 * min(under, values.size - under) >= values.size


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
    kernels.lattice_points(out, codes, *grid, LARGEST[ctx.dtype])
    return out
