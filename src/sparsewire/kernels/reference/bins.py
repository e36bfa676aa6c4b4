"""A uniform quantizer of magnitudes with a dead zone: bins, their symbols, and the reconstruction.

Magnitudes below `start` are the dead zone. Bin b = 0, 1, … begins b quantization steps above `start`. Positions are
integers, in units of 1/256 of a step, so that sums are exact and their order does not matter.

A bin index is signed: ±(1 + bin), 0 for the dead zone, `NON_FINITE` for NaN and infinity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import Array, Bytes
from .bits import pack_uneven, unpack_uneven

UNITS = 256  # of a quantization step
CLASSES = 608  # log-linear classes of bins below 2^23, 32 to the octave
ROWS = CLASSES + 2  # and the dead zone, and the non-finite values
NON_FINITE = -(2**31)
MOST_UNITS = 2**30
MOST_BINS = 2**23 - 1


def log_linear(bins: Array, precision: int) -> tuple[Array, Array]:
    """(class, bits below it) of integers < 2^31: a class for each below 2^precision, then 2^precision to the octave."""
    whole = bins.astype(np.int64)
    exponent = np.maximum(np.frexp(whole.astype(np.float64))[1] - 1, precision)
    below = (exponent - precision).astype(np.int64)
    return (below << precision) + (whole >> below), below


def magnitude_range(values: Array) -> tuple[float, float, float]:
    """(smallest magnitude above 0, largest, sum of squares) of the finite values; zeros where there are none.

    The sum in float64: value i goes to lane i mod 8, each lane in order, then the lanes in order.
    """
    magnitude = np.where(np.isfinite(values), np.abs(values), values.dtype.type(0)).astype(np.float64)
    lanes = np.zeros((-(-values.size // 8) + 1, 8))
    with np.errstate(over="ignore", under="ignore"):
        lanes[1:].reshape(-1)[: values.size] = magnitude * magnitude
        energy = 0.0
        for lane in np.add.accumulate(lanes, axis=0)[-1].tolist():
            energy += lane
    nonzero = magnitude[magnitude > 0]
    return (float(nonzero.min()), float(nonzero.max()), energy) if nonzero.size else (0.0, 0.0, energy)


def assign_bins(values: Array, start: float, scale: float) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """(the bin index of each value, a histogram) for units of 1/scale from `start` on.

    The histogram has a row for each class of bins: how many values are positive and how many negative, and the sum and
    the sum of squares of their units within the bin. The last two rows are the dead zone (all in the first column,
    units from 0) and the non-finite values.
    """
    if not (0 <= start < np.inf and 0 < scale < np.inf):
        raise ValueError("a quantizer needs a start ≥ 0 and a scale > 0")
    finite, negative = np.isfinite(values), np.signbit(values)
    magnitude = np.where(finite, np.abs(values), values.dtype.type(0)).astype(np.float64)
    outside = (magnitude < start) | (magnitude == 0) | ~finite
    with np.errstate(over="ignore"):
        units = np.minimum((magnitude - np.where(outside, 0.0, start)) * scale, float(MOST_UNITS)).astype(np.int64)
    bins, within = units >> 8, np.where(outside, units, units & 255)
    rows = np.where(outside, np.where(finite, CLASSES, CLASSES + 1), log_linear(bins, 5)[0])
    inside = rows < CLASSES
    histogram = np.zeros(4 * ROWS, np.int64)
    np.add.at(histogram, 4 * rows + (inside & negative), 1)
    np.add.at(histogram, 4 * rows + 2, within)
    np.add.at(histogram, 4 * rows + 3, within * within)
    bin_indices = np.where(inside, np.where(negative, -1 - bins, 1 + bins), np.where(finite, 0, NON_FINITE))
    return bin_indices.astype(np.int32), histogram


def symbols_encode(bin_indices: NDArray[np.int32], shift: int, precision: int, signs: int) -> tuple[Bytes, Bytes]:
    """(symbols, their extra bits): symbol 0 is the dead zone, 1 non-finite, the others are classes of bins.

    The class is that of bin >> shift; the extra bits are those of the bin below the class. With signs = 1 the lowest
    extra bit is the sign, with signs = 2 the sign is part of the symbol, otherwise it is not coded.
    """
    _check_alphabet(shift, precision, signs)
    non_finite = bin_indices == NON_FINITE
    binned, negative = ~non_finite & (bin_indices != 0), (bin_indices < 0).astype(np.int64)
    bins = np.where(binned, np.abs(bin_indices.astype(np.int64)) - 1, 0)
    if bin_indices.size and int(bins.max()) >= MOST_BINS:
        raise ValueError("a bin is out of range")
    classes, below = log_linear(bins >> shift, precision)
    symbols = np.where(binned, 2 + (2 * classes + negative if signs == 2 else classes), non_finite)
    if bin_indices.size and int(symbols.max()) > 255:
        raise ValueError("there are too many symbols")
    low = bins & ((1 << (below + shift)) - 1)
    extra = (low << 1 | negative if signs == 1 else low).astype(np.uint32)
    widths = np.where(binned, below + shift + (signs == 1), 0).astype(np.uint8)
    return symbols.astype(np.uint8), pack_uneven(extra, widths)


def symbols_decode(symbols: Bytes, extra: Bytes, shift: int, precision: int, signs: int) -> NDArray[np.int32]:
    """The bin indices, where signs = −1 means that all are negative; a class of bins out of range is an error."""
    _check_alphabet(shift, precision, signs)
    numbers = symbols.astype(np.int64)
    classes = np.maximum(0, numbers - 2) >> (signs == 2)
    below = np.maximum(0, (classes >> precision) - 1)
    if numbers.size and int(below.max()) + shift > 22:
        raise ValueError("a symbol's bins are out of range")
    widths, binned = below + shift, numbers > 1
    lowest = (classes - (below << precision)) << widths
    if (lowest + (1 << widths) > MOST_BINS)[binned].any():
        raise ValueError("a symbol's bins are out of range")
    bits = unpack_uneven(extra, np.where(binned, widths + (signs == 1), 0).astype(np.uint8)).astype(np.int64)
    negative = {-1: binned, 1: bits & 1, 2: numbers & 1}.get(signs, 0 * numbers)
    above = 1 + lowest + (bits >> (signs == 1))
    return np.where(binned, np.where(negative, -above, above), np.where(numbers, NON_FINITE, 0)).astype(np.int32)


def _check_alphabet(shift: int, precision: int, signs: int) -> None:
    if not (0 <= shift <= 22 and 0 <= precision <= 5 and -1 <= signs <= 2):
        raise ValueError("a shift, a precision or a kind of signs is out of range")


def reconstruct(
    out: Array, bin_indices: NDArray[np.int32], start: float, unit: float, offsets: Bytes, limit: float
) -> None:
    """The reconstruction points: start + (256 · bin + offset) · unit in float64, at most `limit`, with the sign.

    `offsets` has the reconstruction offsets of the first bins; the last of them is that of all further bins. `out` may
    share its memory with `bin_indices`.
    """
    if out.size != bin_indices.size or not offsets.size:
        raise ValueError("the output does not fit the bin indices, or there are no offsets")
    binned = (bin_indices != 0) & (bin_indices != NON_FINITE)
    bins = np.where(binned, np.abs(bin_indices.astype(np.int64)) - 1, 0)
    if bin_indices.size and int(bins.max()) >= MOST_BINS:
        raise ValueError("a bin is out of range")
    units = UNITS * bins + offsets[np.minimum(bins, offsets.size - 1)]
    magnitude = np.minimum(start + units.astype(np.float64) * unit, limit)
    out[:] = np.where(binned, np.where(bin_indices < 0, -magnitude, magnitude), np.where(bin_indices == 0, 0.0, np.nan))
