"""What the curve-fitting codecs share: values sorted into curves, a section around them, and the map back.

Where this differs from DeepReduce (arXiv 2102.03112): the map travels at ⌈log2 n⌉ bits a value (the authors' code sends
64), or coarser, or not at all where the index codec can carry the order; non-finite values travel as they are.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join, varint
from sparsewire.core.sparse import work_dtype
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec


def unsigned_count(values: Array) -> int:
    return int(values.size - np.count_nonzero(np.signbit(values)))


def scaled(values: Array, exponent: int) -> Array:
    """values · 2^exponent in float64; in two steps, since the power alone may be out of range."""
    half = exponent // 2
    product = values.astype(np.float64)
    product *= 2.0**half
    product *= 2.0 ** (exponent - half)
    return product


def falling(curve: Array) -> Array:
    """The running minimum of a curve of numbers ≥ 0; −0.0 becomes 0.0."""
    # Their bits as integers have the same order, and are several times faster to compare.
    bits = np.abs(curve, out=curve).view(f"u{curve.itemsize}")
    return np.minimum.accumulate(bits, out=bits).view(curve.dtype)


def exponent_of(top: float) -> int:
    """The e for which 2^(e−1) ≤ top < 2^e."""
    return math.frexp(top)[1]


def take_magnitudes(reader: Reader, count: int, dtype: np.dtype[np.floating]) -> Array:
    """Finite numbers ≥ 0 that do not ascend."""
    ends = array(reader.take(count * dtype.itemsize), dtype.str)
    if np.signbit(ends).any() or not np.isfinite(ends).all() or (ends[1:] > ends[:-1]).any():
        raise ValueError("the ends of a curve ascend, or are no magnitudes")
    return ends


def take_coefficients(reader: Reader, count: int, dtype: np.dtype[np.floating], limit: float) -> Array:
    coefficients = array(reader.take(count * dtype.itemsize), dtype.str)
    if not np.isfinite(coefficients).all() or (np.abs(coefficients) > limit).any():
        raise ValueError("a coefficient is larger than any fit gives")
    return coefficients.astype(np.float64)


@dataclass(frozen=True)
class Ranks:
    """The ranks of two curves, cut into at most 2^bits stretches, none of which spans both curves; a code names one."""

    sides: tuple[int, int]
    bits: int | None

    @property
    def stretch(self) -> int:
        """Ranks in a stretch: the fewest with which `bits` suffice."""
        if self.bits is None:
            return 1
        most = 2**self.bits
        return 1 + bisect_left(range(1, sum(self.sides) + 1), True, key=lambda length: self._codes(length) <= most)

    def _codes(self, stretch: int) -> int:
        return sum(-(-side // stretch) for side in self.sides)

    @property
    def width(self) -> int:
        return max(0, self._codes(self.stretch) - 1).bit_length()

    @property
    def bytes(self) -> int:
        return (sum(self.sides) * self.width + 7) // 8

    def starts(self) -> Array:
        """The first rank of every stretch, and the end."""
        first, second = self.sides
        inner = [np.arange(0, first, self.stretch), np.arange(first, first + second, self.stretch)]
        return np.concatenate([*inner, np.array([first + second])])

    def codes(self) -> Array:
        """The code of every rank."""
        if self.stretch == 1:
            return np.arange(sum(self.sides), dtype=np.uint32)
        sizes = np.diff(self.starts())
        return np.repeat(np.arange(sizes.size, dtype=np.uint32), sizes)

    def table(self, curve: Array) -> Array:
        """The value of every code: the curve in the middle of its stretch."""
        if self.stretch == 1:
            return curve
        starts = self.starts()
        return curve[(starts[:-1] + starts[1:] - 1) // 2]

    def read(self, packed: memoryview) -> Array:
        codes = kernels.unpack_bits(array(packed), self.width, sum(self.sides))
        sizes = np.diff(self.starts())
        if not np.array_equal(np.bincount(codes, minlength=sizes.size), sizes):
            raise ValueError("the map does not hold every rank once")
        return codes


@dataclass(frozen=True)
class Head:
    """How many values each curve has; the non-finite values, which are on none, and their places."""

    sides: tuple[int, int]
    places: Array
    non_finite: Array

    def write(self, ctx: Context) -> bytes:
        places = kernels.pack_bits(self.places.astype(np.uint32), max(0, ctx.count - 1).bit_length())
        return join(varint(self.sides[0]), varint(self.non_finite.size), places, self.non_finite)

    @classmethod
    def read(cls, reader: Reader, ctx: Context) -> Head:
        first, others = reader.varint(), reader.varint()
        if first + others > ctx.count:
            raise ValueError(f"{first} + {others} values, the frame has {ctx.count}")
        width, dtype = max(0, ctx.count - 1).bit_length(), work_dtype(ctx.dtype)
        places = kernels.unpack_bits(array(reader.take((others * width + 7) // 8)), width, others)
        numbers = array(reader.take(others * dtype.itemsize), dtype.str)
        if others and not (places[-1] < ctx.count and (places[1:] > places[:-1]).all()):
            raise ValueError("the places of the non-finite values do not ascend below the count")
        if np.isfinite(numbers).any():
            raise ValueError("a number that is sent as non-finite is finite")
        return cls((first, ctx.count - first - others), places, numbers)

    def merge(self, finite: Array) -> Array:
        """All values in their places."""
        if not self.non_finite.size:
            return finite
        out = np.empty(finite.size + self.non_finite.size, finite.dtype)
        mask = np.ones(out.size, bool)
        mask[self.places] = False
        out[mask], out[self.places] = finite, self.non_finite
        return out


class CurveCodec(ValueCodec):
    """Sorted magnitudes of each sign as a curve.

    1. Non-finite values are put aside, with their places.
    2. The rest is sorted: positives, then negatives, each from the largest magnitude down; each side is fitted.
    3. The map says for each value its rank, or the stretch of ranks that it lies in; nothing where entries are ordered.

    The encoder evaluates the curves from the section's bytes, as the decoder does.
    """

    reorders = True
    rank_bits: int | None

    @abstractmethod
    def fit(self, magnitudes: Array) -> bytes:
        """The curve of one side, which descends."""

    @abstractmethod
    def draw(self, reader: Reader, count: int, dtype: np.dtype[np.floating]) -> Array:
        """`count` magnitudes in `dtype`, not ascending."""

    @abstractmethod
    def curve_limit(self, item: int) -> int:
        """The most bytes that `fit` gives, with numbers of `item` bytes."""

    def check(self) -> None:
        self.expect(self.rank_bits is None or 1 <= self.rank_bits <= 32, "rank_bits lies in 1 … 32")

    def order(self, values: Array) -> Array:
        finite = np.isfinite(values)
        places = np.flatnonzero(finite)
        return np.concatenate([places[kernels.descending(values[finite])[1]], np.flatnonzero(~finite)])

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        values = np.ascontiguousarray(values)
        finite = np.isfinite(values)
        places = np.flatnonzero(~finite)
        rest = values[finite] if places.size else values
        first = unsigned_count(rest)
        head = Head((first, rest.size - first), places, values[places])
        magnitudes, order = (np.abs(rest), None) if ctx.ordered else kernels.descending(rest)
        curves = self.fit(magnitudes[:first]) + self.fit(magnitudes[first:])
        curve = self._draw_both(Reader(curves), head.sides, values.dtype)
        packed, approx = (b"", curve) if order is None else self._map(Ranks(head.sides, self.rank_bits), order, curve)
        return join(head.write(ctx), curves, packed), head.merge(approx)

    @staticmethod
    def _map(ranks: Ranks, order: Array, curve: Array) -> tuple[Array, Array]:
        codes, approx, by_rank = np.empty(order.size, np.uint32), np.empty_like(curve), ranks.codes()
        codes[order] = by_rank
        approx[order] = curve if ranks.stretch == 1 else ranks.table(curve)[by_rank]
        return kernels.pack_bits(codes, ranks.width), approx

    def decode(self, body: memoryview, ctx: Context) -> Array:
        reader = Reader(body)
        head = Head.read(reader, ctx)
        ranks = Ranks(head.sides, self.rank_bits)
        curves, packed = self._split(reader, 0 if ctx.ordered else ranks.bytes)
        curve = self._draw_both(Reader(curves), head.sides, work_dtype(ctx.dtype))
        return head.merge(curve if ctx.ordered else ranks.table(curve).take(ranks.read(packed)))

    @staticmethod
    def _split(reader: Reader, map_bytes: int) -> tuple[memoryview, memoryview]:
        if map_bytes > reader.left:
            raise ValueError(f"the map has {map_bytes} bytes, {reader.left} are left")
        return reader.take(reader.left - map_bytes), reader.take(map_bytes)

    def _draw_both(self, reader: Reader, sides: tuple[int, int], dtype: np.dtype[np.floating]) -> Array:
        curve = np.concatenate([self.draw(reader, sides[0], dtype), -self.draw(reader, sides[1], dtype)])
        if reader.left:
            raise ValueError(f"{reader.left} bytes more than the curves have")
        return curve

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        reader = Reader(body)
        head = Head.read(reader, ctx)
        sizes = {"head": reader.offset}
        curves, packed = self._split(reader, 0 if ctx.ordered else Ranks(head.sides, self.rank_bits).bytes)
        return {**sizes, "coefficients": len(curves), "map": len(packed)}

    def notes(self, body: memoryview, ctx: Context) -> Mapping[str, float]:
        """`map_bound_bits`: log2 n!, what a map of n equally likely orders costs at least."""
        if ctx.ordered:
            return {}
        count = sum(Head.read(Reader(body), ctx).sides)
        return {"map_bound_bits": math.lgamma(count + 1) / math.log(2)}

    def size_limit(self, ctx: Context) -> int:
        """A value is a number and a place, or a rank; then there are the curves, and two integers before all."""
        item, width = work_dtype(ctx.dtype).itemsize, max(0, ctx.count - 1).bit_length()
        return 20 + ctx.count * item + ctx.count * width // 8 + 2 + 2 * self.curve_limit(item)
