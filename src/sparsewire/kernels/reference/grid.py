"""The grid that `entropy` rounds to: as coarse as the wanted error allows.

1. The first unit is that of a uniform density, where a cell of size Δ gives the error Δ/√12.
2. It is corrected on a sample of at most 4096 values until the error is met and not much below.
3. All values are put on the grid, whose unit shrinks as long as the error, measured exactly, is still too large.

All that is measured are integers, and what is made of them are single float64 operations in the order written here, so
every machine finds the same grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import Array, Bytes
from .lattice import LATTICE_BINS, LATTICE_FINE, lattice_cells, lattice_scan

SAMPLE = 4096
LISTED = 16  # cells with an offset of their own, at most
CLOSE = 0.97  # of the wanted error: near enough
SMALLEST, LARGEST = 2.0**-80, float(np.finfo(np.float32).max)  # magnitudes whose grid 16-bit numbers can say
SMALLEST_UNIT = 2.0**-133  # the smallest 16-bit number

Found = tuple[float, float, Bytes, NDArray[np.int32], NDArray[np.int64]]


def lattice_fit(values: Array, wanted: float) -> Found | None:
    """(start, unit, offsets, codes, counts) of the grid whose error is at most `wanted` × the norm of the values.

    Cells have 256 units; start and unit are upper halves of float32 numbers. Offsets, in units, are where the points of
    the first cells are, the last one for all other cells. Codes are those of `lattice_cells`, counts the first two
    columns of its tallies. None where the values do not suit a grid.
    """
    _check(wanted)
    smallest, largest, energy = lattice_scan(values)
    if largest == 0:
        return _fit(values, 0.0, 1.0).found()
    if not SMALLEST <= largest <= LARGEST:
        return None
    return _many_cells(values, smallest, wanted * math.sqrt(energy) * (1 - 1e-6))


def lattice_levels(values: Array, wanted: float) -> tuple[float, float] | None:
    """A level for the positive values and one for the negative, opposites if that does; None if both are too far."""
    _check(wanted)
    sample = _sample(values)
    if sample.size < values.size and not _sides(sample, 1.05 * wanted):
        return None
    return _sides(values, wanted)


def _check(wanted: float) -> None:
    if not 0.0001 <= wanted <= 1:
        raise ValueError("a wanted error is out of range")


def _sample(values: Array) -> Array:
    return np.ascontiguousarray(values[:: max(1, -(-values.size // SAMPLE))])


def _sides(values: Array, wanted: float) -> tuple[float, float] | None:
    """The sums go one after the other: every machine finds the same."""
    under = int(np.count_nonzero(np.signbit(values)))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.append(0.0, values.astype(np.float64))
        signed = float(np.add.accumulate(wide)[-1])
        total = float(np.add.accumulate(np.abs(wide))[-1])
        energy = float(np.add.accumulate(wide * wide)[-1])
    if not (values.size and SMALLEST * values.size <= total < LARGEST):
        return None
    near = (1 - wanted * wanted * (1 - 1e-6)) * energy  # what the levels' own squares have to reach
    above = values.size - under
    if total * total / values.size >= near and under and above:
        return total / values.size, -total / values.size
    high, low = (total + signed) / 2 / max(1, above), (signed - total) / 2 / max(1, under)
    levels = (high if above else low), (low if under else high)
    return levels if above * high * high + under * low * low >= near else None


@dataclass(frozen=True)
class _Fit:
    """A grid, what is where on it, and its error, which is at most that much.

    It is measured in units, which values are in the middle of, or at most half of one away.
    """

    start: float
    unit: float
    offsets: Bytes
    codes: NDArray[np.int32]
    counts: NDArray[np.int64]
    error: float

    def found(self) -> Found:
        return self.start, self.unit, self.offsets, self.codes, self.counts


def _many_cells(values: Array, smallest: float, allowed: float) -> Found | None:
    sample = _sample(values)
    margin = 1.0 if sample.size == values.size else 0.99  # a sample is not quite the whole
    unit = _search(sample, smallest, margin * allowed / math.sqrt(values.size))
    for _ in range(12):
        fit = _fit(values, smallest, unit)
        if fit.error <= allowed:
            return fit.found()
        unit = fit.unit * max(0.5, 0.985 * allowed / fit.error)
    return None


def _search(sample: Array, smallest: float, allowed: float) -> float:
    """A unit whose error per value is just below `allowed`; a bracket keeps the steps from going astray."""
    unit, good, bad = allowed * math.sqrt(12) / LATTICE_FINE, 0.0, math.inf
    for _ in range(10):
        fit = _fit(sample, smallest, unit)
        ratio = fit.error / math.sqrt(sample.size) / allowed
        good, bad = (fit.unit, bad) if ratio <= 1 else (good, fit.unit)
        alone = not fit.counts[2 : 2 * LATTICE_BINS].any()  # all in the first cell: no unit is too large
        if bad < 1.01 * good or CLOSE <= ratio <= 1 or (ratio <= 1 and alone):
            break
        unit = fit.unit * min(4.0, max(0.25, 0.988 / ratio))
        if not good < unit < bad:
            unit = math.sqrt(good * bad)
    return good or unit


def _fit(values: Array, smallest: float, unit: float) -> _Fit:
    """Magnitudes from the smallest on; where there is no gap around zero, a dead zone instead, as is best there."""
    unit = max(_short(unit), SMALLEST_UNIT)
    start = _short(0.6 * LATTICE_FINE * unit if smallest < LATTICE_FINE * unit / 16 else smallest)
    codes, tallies = lattice_cells(values, start, 1 / unit)
    rows = tallies.reshape(-1, 4)
    offsets, squares = _offsets(rows)
    error = unit * math.sqrt(squares) + 0.5 * unit * math.sqrt(values.size)
    return _Fit(start, unit, offsets, codes, rows[:, :2].reshape(-1), error)


def _short(number: float) -> float:
    """The upper half of a float32, rounded towards zero."""
    bits = np.float32(min(number, LARGEST)).view(np.uint32) & np.uint32(0xFFFF0000)
    return float(bits.view(np.float32))


def _offsets(rows: NDArray[np.int64]) -> tuple[Bytes, float]:
    """(the mean of each listed cell and of all others, in units; the squared error that they leave)."""
    listed, rest = [], rows[:LATTICE_BINS].sum(axis=0).tolist()
    enough = max(16, (rest[0] + rest[1]) >> 6)
    for row in rows[:LISTED].tolist():
        if row[0] + row[1] < enough:
            break
        listed.append(row)
        rest = [a - b for a, b in zip(rest, row, strict=True)]
    while listed and not _worth_a_byte(listed[-1], rest):
        rest = [a + b for a, b in zip(rest, listed.pop(), strict=True)]
    points = [_point(row) for row in [*listed, rest]]
    count, _, total, squares = rows[LATTICE_BINS].tolist()
    left = sum(left for _, left in points) + 4 * squares + 4 * total + count
    return np.array([offset for offset, _ in points], np.uint8), left / 4


def _worth_a_byte(row: list[int], rest: list[int]) -> bool:
    """Whether 8 bits for an offset save more elsewhere: (1 + x)/12 cells² instead of 1/12 are worth x · 0.72 bits."""
    return (row[0] + row[1]) * (_point(row)[0] - _point(rest)[0]) ** 2 > 60_000


def _point(row: list[int]) -> tuple[int, int]:
    """(the mean, 4 × the squared error) of numbers whose half-units are at 2f + 1."""
    above, under, total, squares = row
    count = above + under
    offset = min(255, total // count + 1) if count else LATTICE_FINE // 2
    away = 1 - 2 * offset
    return offset, 4 * squares + 4 * away * total + count * away * away
