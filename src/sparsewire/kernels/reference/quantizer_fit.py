"""The quantizer of `entropy`: the largest quantization step that keeps a wanted error, or two levels.

1. The first step is that of a uniform density, where a step of size Δ gives the error Δ/√12.
2. It is corrected on a sample of at most 4096 values until the error is met and not much below.
3. All values are quantized, with a smaller step as long as the error, measured exactly, is still too large.

What is measured are integers; what is computed from them are single float64 operations in the order written here, so
that every machine finds the same quantizer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import Array, Bytes
from .bins import CLASSES, UNITS, assign_bins, magnitude_range

SAMPLE = 4096
LISTED = 16  # bins with a reconstruction offset of their own, at most
CLOSE = 0.97  # of the wanted error: near enough
SMALLEST, LARGEST = 2.0**-80, float(np.finfo(np.float32).max)  # magnitudes whose start and unit bf16 can hold
SMALLEST_UNIT = 2.0**-133  # the smallest bf16 above 0

QuantizerFit = tuple[float, float, Bytes, NDArray[np.int32], NDArray[np.int64]]


def quantizer_fit(values: Array, wanted: float) -> QuantizerFit | None:
    """(start, unit, offsets, bin indices, counts) of the quantizer whose error is at most `wanted` × the values' norm.

    A quantization step has 256 units; start and unit are bf16 numbers. The reconstruction offsets, in units, are those
    of the first bins, then one for all others. Counts are the first two columns of the histogram of `assign_bins`. None
    where no quantizer with bf16 numbers suits.
    """
    _check(wanted)
    smallest, largest, energy = magnitude_range(values)
    if largest == 0:
        return _fit(values, 0.0, 1.0).fit()
    if not SMALLEST <= largest <= LARGEST:
        return None
    return _uniform(values, smallest, wanted * math.sqrt(energy) * (1 - 1e-6))


def two_level_fit(values: Array, wanted: float) -> tuple[float, float] | None:
    """(a level for the positive values, one for the negative), opposites if those are near enough; None if none are."""
    _check(wanted)
    sample = _sample(values)
    if sample.size < values.size and not _levels(sample, 1.05 * wanted):
        return None
    return _levels(values, wanted)


def _check(wanted: float) -> None:
    if not 0.0001 <= wanted <= 1:
        raise ValueError("a wanted error is out of range")


def _sample(values: Array) -> Array:
    return np.ascontiguousarray(values[:: max(1, -(-values.size // SAMPLE))])


def _levels(values: Array, wanted: float) -> tuple[float, float] | None:
    """The means of either sign. Sums go one after the other, so that every machine finds the same."""
    under = int(np.count_nonzero(np.signbit(values)))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.append(0.0, values.astype(np.float64))
        signed = float(np.add.accumulate(wide)[-1])
        total = float(np.add.accumulate(np.abs(wide))[-1])
        energy = float(np.add.accumulate(wide * wide)[-1])
    if not (values.size and SMALLEST * values.size <= total < LARGEST):
        return None
    near = (1 - wanted * wanted * (1 - 1e-6)) * energy  # the least energy of the levels
    above = values.size - under
    if total * total / values.size >= near and under and above:
        return total / values.size, -total / values.size
    high, low = (total + signed) / 2 / max(1, above), (signed - total) / 2 / max(1, under)
    levels = (high if above else low), (low if under else high)
    return levels if above * high * high + under * low * low >= near else None


@dataclass(frozen=True)
class _Fit:
    """A quantizer, the values' bin indices and counts, and an upper bound of its error.

    The error is measured in whole units, whose middle a value is at most half a unit away from.
    """

    start: float
    unit: float
    offsets: Bytes
    bin_indices: NDArray[np.int32]
    counts: NDArray[np.int64]
    error: float

    def fit(self) -> QuantizerFit:
        return self.start, self.unit, self.offsets, self.bin_indices, self.counts


def _uniform(values: Array, smallest: float, allowed: float) -> QuantizerFit | None:
    sample = _sample(values)
    margin = 1.0 if sample.size == values.size else 0.99  # a sample's error differs a little
    unit = _search(sample, smallest, margin * allowed / math.sqrt(values.size))
    for _ in range(12):
        fit = _fit(values, smallest, unit)
        if fit.error <= allowed:
            return fit.fit()
        unit = fit.unit * max(0.5, 0.985 * allowed / fit.error)
    return None


def _search(sample: Array, smallest: float, allowed: float) -> float:
    """A unit whose error per value is just below `allowed`, kept between one that is good and one that is bad."""
    unit, good, bad = allowed * math.sqrt(12) / UNITS, 0.0, math.inf
    for _ in range(10):
        fit = _fit(sample, smallest, unit)
        ratio = fit.error / math.sqrt(sample.size) / allowed
        good, bad = (fit.unit, bad) if ratio <= 1 else (good, fit.unit)
        alone = not fit.counts[2 : 2 * CLASSES].any()  # all in the first bin: a larger step changes nothing
        if bad < 1.01 * good or CLOSE <= ratio <= 1 or (ratio <= 1 and alone):
            break
        unit = fit.unit * min(4.0, max(0.25, 0.988 / ratio))
        if not good < unit < bad:
            unit = math.sqrt(good * bad)
    return good or unit


def _fit(values: Array, smallest: float, unit: float) -> _Fit:
    """Bins start at the smallest magnitude; where that is near zero, after a dead zone of 0.6 steps to either side."""
    unit = max(_to_bf16(unit), SMALLEST_UNIT)
    start = _to_bf16(0.6 * UNITS * unit if smallest < UNITS * unit / 16 else smallest)
    bin_indices, histogram = assign_bins(values, start, 1 / unit)
    rows = histogram.reshape(-1, 4)
    offsets, squares = _offsets(rows)
    error = unit * math.sqrt(squares) + 0.5 * unit * math.sqrt(values.size)
    return _Fit(start, unit, offsets, bin_indices, rows[:, :2].reshape(-1), error)


def _to_bf16(number: float) -> float:
    """Rounded to bf16 towards zero."""
    bits = np.float32(min(number, LARGEST)).view(np.uint32) & np.uint32(0xFFFF0000)
    return float(bits.view(np.float32))


def _offsets(rows: NDArray[np.int64]) -> tuple[Bytes, float]:
    """(the mean of each listed bin and of all others, in units; the squared error that these offsets leave)."""
    listed, rest = [], rows[:CLASSES].sum(axis=0).tolist()
    enough = max(16, (rest[0] + rest[1]) >> 6)
    for row in rows[:LISTED].tolist():
        if row[0] + row[1] < enough:
            break
        listed.append(row)
        rest = [a - b for a, b in zip(rest, row, strict=True)]
    while listed and not _worth_a_byte(listed[-1], rest):
        rest = [a + b for a, b in zip(rest, listed.pop(), strict=True)]
    centroids = [_centroid(row) for row in [*listed, rest]]
    count, _, total, squares = rows[CLASSES].tolist()
    left = sum(left for _, left in centroids) + 4 * squares + 4 * total + count
    return np.array([offset for offset, _ in centroids], np.uint8), left / 4


def _worth_a_byte(row: list[int], rest: list[int]) -> bool:
    """Whether 8 bits for an offset save more elsewhere: (1 + x)/12 steps² instead of 1/12 are worth x · 0.72 bits."""
    return (row[0] + row[1]) * (_centroid(row)[0] - _centroid(rest)[0]) ** 2 > 60_000


def _centroid(row: list[int]) -> tuple[int, int]:
    """(the mean, 4 × the squared error) of values in the middle of their units: at 2f + 1 half-units for unit f."""
    above, under, total, squares = row
    count = above + under
    offset = min(255, total // count + 1) if count else UNITS // 2
    away = 1 - 2 * offset
    return offset, 4 * squares + 4 * away * total + count * away * away
