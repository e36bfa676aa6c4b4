"""Range-based floats: magnitudes on a grid of float bits that goes down from the largest in equal steps.

A grid is, for each sign, the bits of its largest number, how many numbers it has, 2^shift apart in bits, and the bits
from which on its lowest number is nearer than zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import Array
from .dense import magnitude_bits, magnitude_edge

Side = tuple[int, int, int]  # top, count, half


def range_float_encode(values: Array, shift: int, above: Side, below: Side) -> NDArray[np.uint32]:
    """The nearest numbers' codes: 0 is zero, then the positive ones from the lowest on, then the negative ones."""
    negative, number, _ = _places(values, shift, above, below)
    return np.where(negative & (number > 0), number + above[1], number).astype(np.uint32)


def range_float_error(values: Array, shift: int, above: Side, below: Side, scale: float) -> float:
    """Σ (scale · (value − nearest number))², in float64.

    Value i goes to lane i mod 8, each lane in order, then the lanes in order.
    """
    _, _, bits = _places(values, shift, above, below)
    decoded = bits.astype(f"u{values.dtype.itemsize}").view(values.dtype).astype(np.float64)
    lanes = np.zeros((-(-values.size // 8) + 1, 8))
    with np.errstate(all="ignore"):
        off = (np.abs(values).astype(np.float64) - decoded) * scale
        lanes[1:].reshape(-1)[: values.size] = off * off
        total = 0.0
        for lane in np.add.accumulate(lanes, axis=0)[-1].tolist():
            total += lane
    return total


def lookup(codes: NDArray[np.uint32], table: Array) -> Array:
    """The number in the table for each code."""
    if codes.size and int(codes.max()) >= table.size:
        raise ValueError("a code is beyond its table")
    return table[codes]


def _places(values: Array, shift: int, above: Side, below: Side) -> tuple[Array, Array, Array]:
    """(sign, which number of its side from 1 on or 0 for zero, that number's bits) of each value."""
    infinity = magnitude_edge(np.inf, values.dtype)
    if not (0 <= shift <= np.finfo(values.dtype).nmant and all(_sound(side, infinity) for side in (above, below))):
        raise ValueError("a grid is out of range")
    negative = np.signbit(values)
    top, count, half = np.where(negative, np.array(below)[:, None], np.array(above)[:, None])
    bits = np.minimum(magnitude_bits(values).astype(np.int64), top)
    steps = (top - bits + (1 << shift >> 1)) >> shift
    number = np.maximum(count - steps, bits >= half)
    return negative, number, np.where(number > 0, top - ((count - number) << shift), 0)


def _sound(side: Side, infinity: int) -> bool:
    top, count, half = side
    return 0 <= top < infinity and 0 <= count <= 2**24 and 0 <= half < 2 * infinity
