"""A grid of magnitudes with cells of one size: what falls where, and the points that stand for it.

Positions are counted in 1/256 of a cell from the grid's start, so all sums are integers and their order is free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import Array, Bytes
from .bits import pack_uneven, unpack_uneven

LATTICE_FINE = 256  # units of a cell
LATTICE_BINS = 608  # log-linear classes of cells below 2^23, with 32 to the octave
LATTICE_ROWS = LATTICE_BINS + 2
NOT_FINITE = -(2**31)
TOP = 2**30
MOST_CELLS = 2**23 - 1


def log_linear(cells: Array, precision: int) -> tuple[Array, Array]:
    """(class, bits below) of integers < 2^31: one class each below 2^precision, then 2^precision to the octave."""
    whole = cells.astype(np.int64)
    exponent = np.maximum(np.frexp(whole.astype(np.float64))[1] - 1, precision)
    below = (exponent - precision).astype(np.int64)
    return (below << precision) + (whole >> below), below


def lattice_scan(values: Array) -> tuple[float, float, float]:
    """(smallest magnitude above 0, largest, sum of squares) of what is finite; zeros where there is nothing.

    The sum in float64: value i goes to lane i mod 8, each lane in order, then the lanes in order.
    """
    magnitude = np.where(np.isfinite(values), np.abs(values), values.dtype.type(0)).astype(np.float64)
    lanes = np.zeros((-(-values.size // 8) + 1, 8))
    with np.errstate(over="ignore", under="ignore"):
        lanes[1:].reshape(-1)[: values.size] = magnitude * magnitude
        energy = 0.0
        for lane in np.add.accumulate(lanes, axis=0)[-1].tolist():
            energy += lane
    some = magnitude[magnitude > 0]
    return (float(some.min()), float(some.max()), energy) if some.size else (0.0, 0.0, energy)


def lattice_cells(values: Array, start: float, scale: float) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(code of each value, what is in which bin) for units of 1/scale from `start` on.

    A code is 0 below the start, the lowest int32 for what is not finite, otherwise ±(1 + cell). A bin's row holds how
    many values there are above 0 and below, and the sum and the sum of squares of their units within the cell; the
    last two rows are those below the start (all in the first column; units from 0) and those that are not finite.
    """
    if not (0 <= start < np.inf and 0 < scale < np.inf):
        raise ValueError("a lattice needs a start ≥ 0 and a scale > 0")
    finite, negative = np.isfinite(values), np.signbit(values)
    magnitude = np.where(finite, np.abs(values), values.dtype.type(0)).astype(np.float64)
    outside = (magnitude < start) | (magnitude == 0) | ~finite
    with np.errstate(over="ignore"):
        units = np.minimum((magnitude - np.where(outside, 0.0, start)) * scale, float(TOP)).astype(np.int64)
    cells, within = units >> 8, np.where(outside, units, units & 255)
    rows = np.where(outside, np.where(finite, LATTICE_BINS, LATTICE_BINS + 1), log_linear(cells, 5)[0])
    inside = rows < LATTICE_BINS
    tallies = np.zeros(4 * LATTICE_ROWS, np.int64)
    np.add.at(tallies, 4 * rows + (inside & negative), 1)
    np.add.at(tallies, 4 * rows + 2, within)
    np.add.at(tallies, 4 * rows + 3, within * within)
    codes = np.where(inside, np.where(negative, -1 - cells, 1 + cells), np.where(finite, 0, NOT_FINITE))
    return codes.astype(np.int32), tallies


def lattice_split(codes: NDArray[np.int32], shift: int, precision: int, signs: int) -> tuple[Bytes, Bytes]:
    """(symbols, their extra bits) of codes: symbol 0 for 0, 1 for not finite, then classes.

    The class is that of cell >> shift; the extra bits are the cell's below it. With signs = 1 the lowest extra bit says
    that it is negative, with signs = 2 the symbol does, otherwise nothing.
    """
    _check_layout(shift, precision, signs)
    odd = codes == NOT_FINITE
    plain, negative = ~odd & (codes != 0), (codes < 0).astype(np.int64)
    cells = np.where(plain, np.abs(codes.astype(np.int64)) - 1, 0)
    if codes.size and int(cells.max()) >= MOST_CELLS:
        raise ValueError("a cell is out of range")
    classes, below = log_linear(cells >> shift, precision)
    symbols = np.where(plain, 2 + (2 * classes + negative if signs == 2 else classes), odd)
    if codes.size and int(symbols.max()) > 255:
        raise ValueError("there are too many symbols")
    low = cells & ((1 << (below + shift)) - 1)
    extras = (low << 1 | negative if signs == 1 else low).astype(np.uint32)
    widths = np.where(plain, below + shift + (signs == 1), 0).astype(np.uint8)
    return symbols.astype(np.uint8), pack_uneven(extras, widths)


def lattice_join(symbols: Bytes, extra: Bytes, shift: int, precision: int, signs: int) -> NDArray[np.int32]:
    """The inverse, where signs = −1 means that all are negative; no class may have cells beyond the grid."""
    _check_layout(shift, precision, signs)
    numbers = symbols.astype(np.int64)
    classes = np.maximum(0, numbers - 2) >> (signs == 2)
    below = np.maximum(0, (classes >> precision) - 1)
    if numbers.size and int(below.max()) + shift > 22:
        raise ValueError("a symbol stands for cells beyond the grid")
    widths, plain = below + shift, numbers > 1
    lowest = (classes - (below << precision)) << widths
    if (lowest + (1 << widths) > MOST_CELLS)[plain].any():
        raise ValueError("a symbol stands for cells beyond the grid")
    extras = unpack_uneven(extra, np.where(plain, widths + (signs == 1), 0).astype(np.uint8)).astype(np.int64)
    negative = {-1: plain, 1: extras & 1, 2: numbers & 1}.get(signs, 0 * numbers)
    codes = 1 + lowest + (extras >> (signs == 1))
    return np.where(plain, np.where(negative, -codes, codes), np.where(numbers, NOT_FINITE, 0)).astype(np.int32)


def _check_layout(shift: int, precision: int, signs: int) -> None:
    if not (0 <= shift <= 22 and 0 <= precision <= 5 and -1 <= signs <= 2):
        raise ValueError("a shift, a precision or a kind of signs is out of range")


def lattice_points(
    out: Array, codes: NDArray[np.int32], start: float, unit: float, offsets: Bytes, limit: float
) -> None:
    """What codes stand for: start + (256 · cell + offset) · unit in float64, at most `limit`, with its sign.

    The offset is that of the cell, or the last one for all cells beyond. `out` may be where the codes are.
    """
    if out.size != codes.size or not offsets.size:
        raise ValueError("codes and tables do not fit")
    plain = (codes != 0) & (codes != NOT_FINITE)
    cells = np.where(plain, np.abs(codes.astype(np.int64)) - 1, 0)
    if codes.size and int(cells.max()) >= MOST_CELLS:
        raise ValueError("a cell is out of range")
    place = 256 * cells + offsets[np.minimum(cells, offsets.size - 1)]
    magnitude = np.minimum(start + place.astype(np.float64) * unit, limit)
    out[:] = np.where(plain, np.where(codes < 0, -magnitude, magnitude), np.where(codes == 0, 0.0, np.nan))
