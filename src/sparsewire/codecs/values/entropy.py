"""`entropy`: as few bits as a wanted error allows, by entropy-coded uniform quantization.

It is within a quarter of a bit of what any scalar code can reach (Gish and Pierce, 1968). Here:

1. Magnitudes go to the bins of a uniform quantizer whose dead zone ends at the smallest of them (top-k leaves a gap
   around zero) and whose quantization step is just small enough for the wanted error (`quantizer_fit`). A bin is
   reconstructed as the mean of the values in it.
2. A bin is a symbol and extra bits, as in `huffman`: a symbol for each bin near the start, then classes that double in
   size. How many classes, and how many low bits are always extra bits, is what costs the least (`alphabet_fit`).
3. The symbols go through rANS, which needs no whole bits; the sign is an extra bit, or part of the symbol where signs
   are skewed.

Rounding is to the nearest point and so not unbiased, unlike `qsgd`: a residual makes up for it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparsewire import kernels
from sparsewire.core.binary import Reader, from_bf16, join, to_bf16, varint
from sparsewire.core.sparse import LARGEST, load, store, work_dtype
from sparsewire.kernels import Array, Bytes

from ..contract import Context, ValueCodec
from .raw import STORED, read

RAW, NONE_NEGATIVE, NONE_POSITIVE, SIGN_BIT, SIGN_IN_SYMBOL, MAGNITUDE, LEVELS = range(7)
KERNEL_SIGNS = {NONE_NEGATIVE: 0, NONE_POSITIVE: -1, SIGN_BIT: 1, SIGN_IN_SYMBOL: 2}
WIRE_SIGNS = {kernel: wire for wire, kernel in KERNEL_SIGNS.items()}
LISTED = 16  # bins with a reconstruction offset of their own, at most


class Alphabet(NamedTuple):
    """How bins become symbols: `shift` low bits are extra bits, classes are 2^precision to the octave."""

    shift: int
    precision: int
    signs: int  # as kernels number them


class Quantizer(NamedTuple):
    """Bins of 256 units from `start` on; reconstruction offsets of the first bins, the last one for all others."""

    start: float
    unit: float
    offsets: Bytes


class FrequencyTable(NamedTuple):
    """The arguments of `frequency_table_decode`."""

    data: Bytes
    symbols: int
    outside: int
    resolution: int

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> tuple[FrequencyTable, NDArray[np.uint32]]:
        """The table, and the frequencies that are decoded from it."""
        resolution = kernels.frequency_table_resolution(counts)
        data, frequencies = kernels.frequency_table_encode(counts, resolution)
        here = [count > 0 for count in counts[:2].tolist()]
        outside = sum(1 << symbol for symbol, occurs in enumerate(here) if occurs)
        return cls(data, counts.size - len(here) + sum(here), outside, resolution), frequencies


class Section(NamedTuple):
    """A section taken apart; only its lengths and its frequency table have been checked."""

    alphabet: Alphabet
    quantizer: Quantizer
    table: FrequencyTable
    frequencies: NDArray[np.uint32]
    stream: Bytes
    extra: Bytes

    @classmethod
    def read(cls, reader: Reader, count: int) -> Section:
        first, second, start, unit, listed = struct.unpack("<BBHHB", reader.take(7))
        signs, precision, shift = first & 7, first >> 3 & 7, second & 31
        if not (RAW < signs <= SIGN_IN_SYMBOL and precision <= 5 and shift <= 22):
            raise ValueError("a symbol alphabet is out of range")
        if listed > LISTED or start >= 0x7F80 or not 0 < unit < 0x7F80:
            raise ValueError("a quantizer is out of range")
        quantizer = Quantizer(from_bf16(start), from_bf16(unit), reader.bytes(listed + 1))
        symbols = reader.byte()
        table = FrequencyTable(reader.bytes(reader.varint()), symbols, first >> 6, second >> 5)
        frequencies, size = kernels.frequency_table_decode(*table), reader.varint()
        if _single(frequencies) and size != count:
            raise ValueError("the section has another count than the header")
        stream = reader.bytes(0 if _single(frequencies) else size)
        alphabet = Alphabet(shift, precision, KERNEL_SIGNS[signs])
        return cls(alphabet, quantizer, table, frequencies, stream, reader.rest())

    def write(self, count: int) -> bytes:
        (shift, precision, signs), quantizer, table = self.alphabet, self.quantizer, self.table
        first = WIRE_SIGNS[signs] | precision << 3 | table.outside << 6
        numbers = to_bf16(quantizer.start), to_bf16(quantizer.unit)
        head = struct.pack("<BBHHB", first, shift | table.resolution << 5, *numbers, len(quantizer.offsets) - 1)
        sizes = bytes([table.symbols]) + varint(len(table.data))
        size = varint(count if _single(self.frequencies) else len(self.stream))
        return join(head, quantizer.offsets, sizes, table.data, size, self.stream, self.extra)

    def bin_indices(self, count: int) -> NDArray[np.int32]:
        if _single(self.frequencies):
            symbols = np.full(count, np.argmax(self.frequencies), np.uint8)
        else:
            symbols = kernels.rans_decode(self.stream, self.frequencies, count)
        return kernels.symbols_decode(symbols, self.extra, *self.alphabet)


def _single(frequencies: NDArray[np.uint32]) -> bool:
    """Whether only one symbol occurs: then there is no stream."""
    return np.count_nonzero(frequencies) == 1


@dataclass(frozen=True)
class Entropy(ValueCodec):
    """Few bits for a wanted relative L2 error (before numbers are rounded to the tensor's dtype).

    Non-finite values become NaN. Values that gain nothing (a few, or beyond float32) are sent as they are.
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
            return _from_levels(body, ctx)
        section = Section.read(Reader(body), ctx.count)
        return _reconstructed(section.bin_indices(ctx.count), section.quantizer, ctx)

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
        """On two levels, in uniform bins, or the smaller where signs are skewed; no bytes where neither is possible."""
        levels = kernels.two_level_fit(values, self.error)
        fit = None if levels and _even(values) else kernels.quantizer_fit(values, self.error)
        options = [_quantized(Quantizer(*fit[:3]), *fit[3:], ctx)] if fit else []
        if levels:
            body = _to_levels(*levels, values)
            options.append((body, _from_levels(memoryview(body), ctx)))
        return min(options, key=lambda option: len(option[0]), default=(b"", values))


def _quantized(
    quantizer: Quantizer, bin_indices: NDArray[np.int32], counts: NDArray[np.int64], ctx: Context
) -> tuple[bytes, Array]:
    *alphabet, symbol_counts = kernels.alphabet_fit(counts)
    table, frequencies = FrequencyTable.of(symbol_counts)
    symbols, extra = kernels.symbols_encode(bin_indices, *alphabet)
    stream = symbols[:0] if _single(frequencies) else kernels.rans_encode(symbols, frequencies)
    section = Section(Alphabet(*alphabet), quantizer, table, frequencies, stream, extra)
    return section.write(ctx.count), _reconstructed(bin_indices, quantizer, ctx)


def _even(values: Array) -> bool:
    """Whether at least a third have either sign: the entropy of a sign is then about a bit."""
    under = int(np.count_nonzero(np.signbit(values)))
    return 3 * min(under, values.size - under) >= values.size


def _to_levels(high: float, low: float, values: Array) -> bytes:
    """A bit for each value, set on the lower level; where both levels are the same, the count."""
    head = struct.pack("<Bf", MAGNITUDE, high) if low == -high else struct.pack("<Bff", LEVELS, high, low)
    which = kernels.pack_bits(np.signbit(values).astype(np.uint32), 1) if high != low else varint(values.size)
    return join(head, which)


def _from_levels(body: memoryview, ctx: Context) -> Array:
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


def _reconstructed(bin_indices: NDArray[np.int32], quantizer: Quantizer, ctx: Context) -> Array:
    """Overwrites the bin indices where the values fit their memory: page faults of a new buffer cost more."""
    dtype = work_dtype(ctx.dtype)
    fits = dtype.itemsize == bin_indices.itemsize
    out = bin_indices.view(dtype) if fits else np.empty(bin_indices.size, dtype)
    kernels.reconstruct(out, bin_indices, *quantizer, LARGEST[ctx.dtype])
    return out
