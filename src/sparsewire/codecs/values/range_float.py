"""`range_float`: floats of N bits whose range is that of the values at hand (SuperNeurons, arXiv 1811.08596).

1. The bits of a float, without its sign, ascend with its magnitude: a step of 2^(23 − m) in them is one in the last
   place of a float with m bits of mantissa (float64: 2^(52 − m)).
2. From the largest value, and likewise from the most negative, the codes of that sign go down in such steps: 2^m codes
   to the octave. Zero is code 0; both signs have as many codes as take them down to about the same magnitude.
3. A value goes to the nearest code; what is nearer to zero than to the lowest becomes zero.

Where this differs from the paper: steps start at the extremes themselves, which are so reproduced exactly, rounding is
to the nearest, and m is found on the values: the one with the smallest error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join
from sparsewire.core.sparse import work_dtype
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec
from . import codes as packing

AUTO = "auto"
LEAST_BITS, MOST_BITS = 2, 16
LARGEST, SAMPLE = 2**12, 2**16  # values that tell which mantissas are worth a look at all of them
LIFTS = {"float32": (2.0**-90, 2.0**100), "float64": (2.0**-900, 2.0**1000)}  # where all are below, times what
NEAR = 3.0  # how many times the sample's smallest squared error a mantissa may have to be looked at
Side = tuple[int, int, int]  # as kernels take it: bits of the largest number, numbers, bits from which on none is zero


class Range(NamedTuple):
    """The bits of the largest value and of the magnitude of the most negative one; 0 for a sign that does not occur."""

    high: int
    low: int


class FloatGrid(NamedTuple):
    """The numbers that codes stand for, in float bits."""

    shift: int
    above: Side
    below: Side

    @classmethod
    def of(cls, extent: Range, bits: int, mantissa: int, dtype: np.dtype[np.floating]) -> FloatGrid:
        shift, codes = int(np.finfo(dtype).nmant) - mantissa, 2**bits - 1
        both = min(max((codes + ((extent.high - extent.low) >> shift) + 1) // 2, 1), codes - 1)
        first = both if extent.high and extent.low else codes * bool(extent.high)
        sides = ((extent.high, first), (extent.low, (codes - first) * bool(extent.low)))
        above, below = (_side(top, count, shift, dtype) for top, count in sides)
        return cls(shift, above, below)

    def numbers(self, dtype: np.dtype[np.floating]) -> Array:
        """The number of each code."""
        sides = [top - (np.arange(count)[::-1] << self.shift) for top, count, _ in (self.above, self.below)]
        unsigned = np.concatenate([[0], *sides]).astype(f"u{dtype.itemsize}")
        unsigned[1 + self.above[1] :] |= unsigned.dtype.type(1 << 8 * dtype.itemsize - 1)
        return unsigned.view(dtype)


def _side(top: int, count: int, shift: int, dtype: np.dtype[np.floating]) -> Side:
    octave = 1 << int(np.finfo(dtype).nmant)  # the bits of the smallest normal number
    count = min(count, max(1, ((top - octave) >> shift) + 1)) if top else 0
    return top, count, _halved(top - ((count - 1) << shift), dtype) if count else kernels.magnitude_edge(np.inf, dtype)


def _halved(bits: int, dtype: np.dtype[np.floating]) -> int:
    """The bits of half a magnitude, rounded up."""
    octave = 1 << int(np.finfo(dtype).nmant)
    return bits - octave if bits >= 2 * octave else (bits + 1) // 2


@dataclass(frozen=True)
class RangeFloat(ValueCodec):
    """Floats of `bits` bits, `mantissa` of them mantissa, fitted to the smallest and the largest value.

    With `bits=auto` as many as a relative error of `error` needs. Where a value is not finite, all become NaN.
    """

    id = "range_float"
    wire_id = 14

    bits: int | str = 10
    mantissa: int | str = AUTO
    error: float = 0.01

    def check(self) -> None:
        fixed = LEAST_BITS <= self.bits <= MOST_BITS if isinstance(self.bits, int) else self.bits == AUTO
        self.expect(fixed, f"bits lies in {LEAST_BITS} … {MOST_BITS}, or is auto")
        least = self.bits if isinstance(self.bits, int) else MOST_BITS
        fixed = 0 <= self.mantissa < least if isinstance(self.mantissa, int) else self.mantissa == AUTO
        self.expect(fixed, f"mantissa lies in 0 … {least - 1}, below bits, or is auto")
        self.expect(0.0001 <= self.error <= 0.5, "error lies in 0.0001 … 0.5 (0.01 % … 50 %)")

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        if not kernels.all_finite(values):
            return self._not_finite(values, ctx)
        extremes = np.array([max(values.max(), 0), min(values.min(), 0)], values.dtype)
        lift = _lift(extremes)
        lifted = values if lift == 1 else values * lift
        fit = FloatFit(lifted, _range_of(extremes * lift))
        bits, mantissa = self._settled(fit)
        codes = kernels.range_float_encode(lifted, *FloatGrid.of(fit.range, bits, mantissa, values.dtype))
        body = join(bytes([bits, mantissa]), extremes, packing.pack(codes, bits, ctx))
        return body, kernels.lookup(codes, _numbers(extremes, bits, mantissa))

    def decode(self, body: memoryview, ctx: Context) -> Array:
        if not ctx.count and not len(body):
            return np.empty(0, work_dtype(ctx.dtype))
        bits, mantissa, extremes, packed = self._streams(body, ctx)
        codes = packing.unpack(packed, bits, ctx)
        return kernels.lookup(codes, extremes[:1] if np.isnan(extremes).any() else _numbers(extremes, bits, mantissa))

    def size_limit(self, ctx: Context) -> int:
        bits = self.bits if isinstance(self.bits, int) else MOST_BITS
        return ctx.count and 2 + 2 * work_dtype(ctx.dtype).itemsize + packing.size(bits, ctx)

    def item_size(self, ctx: Context) -> int:
        return packing.item_size(self.bits if isinstance(self.bits, int) else LEAST_BITS, ctx)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        if not len(body):
            return {}
        codes = len(self._streams(body, ctx)[3])
        return {"range": len(body) - codes, "codes": codes}

    def notes(self, body: memoryview, ctx: Context) -> Mapping[str, float]:
        """N and m."""
        if not len(body):
            return {}
        bits, mantissa, _, _ = self._streams(body, ctx)
        return {"bits": bits, "mantissa": mantissa}

    def _not_finite(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        bits = self.bits if isinstance(self.bits, int) else LEAST_BITS
        nan = np.full(2, np.nan, values.dtype)
        packed = packing.pack(np.zeros(values.size, np.uint32), bits, ctx)
        return join(bytes([bits, 0]), nan, packed), np.full(values.size, nan[0])

    def _settled(self, fit: FloatFit) -> tuple[int, int]:
        """(bits, mantissa): as they are set, or found."""
        fixed = self.mantissa if isinstance(self.mantissa, int) else None
        if isinstance(self.bits, int):
            return self.bits, fit.best(self.bits) if fixed is None else fixed
        return fit.fewest(self.error, fixed)

    def _streams(self, body: memoryview, ctx: Context) -> tuple[int, int, Array, memoryview]:
        """(bits, mantissa, largest and smallest value, codes)."""
        reader, dtype = Reader(body), work_dtype(ctx.dtype)
        bits, mantissa = reader.byte(), reader.byte()
        if not (LEAST_BITS <= bits <= MOST_BITS and mantissa < bits and self.bits in (AUTO, bits)):
            raise ValueError("bits or mantissa are out of range")
        extremes = array(reader.take(2 * dtype.itemsize), dtype.str, copy=True)
        if not (np.isnan(extremes).all() or (np.isfinite(extremes).all() and extremes[0] >= 0 >= extremes[1])):
            raise ValueError("the range is none")
        return bits, mantissa, extremes, reader.take(reader.left)


class FloatFit:
    """Looks for the bits and the mantissa that suit the values.

    Of many values a part is looked at first: the largest, which errors may be all about, and a sample of the others.
    """

    def __init__(self, values: Array, extent: Range) -> None:
        self.values, self.range = values, extent
        self.largest, self.sample, self.stretch = _parted(values)
        largest = np.array([max(extent)], f"u{values.dtype.itemsize}").view(values.dtype)[0]
        exponent = math.frexp(float(largest))[1]
        self.scale = math.ldexp(1.0, min(max(-exponent, -1000), 1000))  # squares keep their range

    def best(self, bits: int) -> int:
        """The mantissa with the smallest error; of equal ones the smallest."""
        errors = {
            mantissa: largest + self.stretch * others for mantissa, (largest, others) in self._parts(bits).items()
        }
        if self.stretch > 1:
            near = NEAR * min(errors.values())
            close = [mantissa for mantissa, error in errors.items() if error <= near]
            if len(close) == 1:
                return close[0]
            errors = {mantissa: self._error(bits, mantissa, self.values) for mantissa in close}
        return min(errors, key=lambda mantissa: errors[mantissa])

    def fewest(self, error: float, mantissa: int | None) -> tuple[int, int]:
        """The fewest bits whose relative error is at most the wanted one; the most there are if none has it."""
        most = error**2 * self._energy()
        for bits in range(max(LEAST_BITS, (mantissa or 0) + 1), MOST_BITS):
            if min(sum(parts) for parts in self._parts(bits).values()) > most:
                continue
            chosen = self.best(bits) if mantissa is None else mantissa
            if self._error(bits, chosen, self.values) <= most:
                return bits, chosen
        return MOST_BITS, self.best(MOST_BITS) if mantissa is None else mantissa

    def _energy(self) -> float:
        """The squared error of a grid without numbers."""
        nothing = _side(0, 0, 0, self.values.dtype)
        return kernels.range_float_error(self.values, 0, nothing, nothing, self.scale)

    def _parts(self, bits: int) -> dict[int, tuple[float, float]]:
        """The squared errors of the largest values and of the sample, by mantissa."""
        parts = self.largest, self.sample
        return {m: (self._error(bits, m, parts[0]), self._error(bits, m, parts[1])) for m in range(bits)}

    def _error(self, bits: int, mantissa: int, values: Array) -> float:
        grid = FloatGrid.of(self.range, bits, mantissa, values.dtype)
        return kernels.range_float_error(values, *grid, self.scale)


def _parted(values: Array) -> tuple[Array, Array, int]:
    """(the largest values, a sample of the others, how many others each stands for); all of them if they are few.

    Of each stretch one value, at a place that a hash picks, so that values with a period show all of it.
    """
    stretch = -(-values.size // SAMPLE)
    if stretch == 1:
        return values[:0], values, 1
    largest = kernels.topk(values, LARGEST)[1]
    first = np.arange(values.size // stretch, dtype=np.int64) * stretch
    sample = values[first + (kernels.random_bits(0, 0, first.size) % np.uint64(stretch)).astype(np.int64)]
    sample[np.abs(sample) >= np.abs(largest).min()] = 0  # what is among the largest counts there
    return largest, sample, stretch


def _lift(extremes: Array) -> Any:
    """What numbers are multiplied by before they go to the grid: among the subnormal ones bits are no logarithms."""
    low, high = LIFTS[extremes.dtype.name]
    return extremes.dtype.type(high if np.abs(extremes).max() < low else 1)


def _numbers(extremes: Array, bits: int, mantissa: int) -> Array:
    """The number of each code."""
    lift = _lift(extremes)
    return FloatGrid.of(_range_of(extremes * lift), bits, mantissa, extremes.dtype).numbers(extremes.dtype) / lift


def _range_of(extremes: Array) -> Range:
    high, low = kernels.magnitude_bits(extremes).tolist()
    return Range(high, low)
