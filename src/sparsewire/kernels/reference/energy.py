"""How many of the largest entries hold a wanted share of the energy."""

from __future__ import annotations

import math

import numpy as np

from .base import Array
from .dense import magnitude_bits, magnitude_edge


def energy_count(x: Array, share: float) -> int:
    """The fewest of the largest entries that leave at most `share` of Σ x² to all others; −1 where x is not finite.

    1. Energies, in float64, go to bins by magnitude, 128 to the octave, in two lanes by even and odd index.
    2. Whole bins are left out from the smallest on; of the next, entries in ascending order.
    """
    if not 0 <= share < 1:
        raise ValueError("a share of the energy lies in 0 … 1")
    bits = magnitude_bits(x)
    if not x.size or int(bits.max()) >= magnitude_edge(np.inf, x.dtype):
        return -1 if x.size else 0
    energy = _scaled(x) ** 2
    bins = (bits >> bits.dtype.type(np.finfo(x.dtype).nmant - 7)).astype(np.int64)
    lanes = np.bincount(2 * bins + np.arange(x.size) % 2, weights=energy, minlength=2 * int(bins.max()) + 2)
    below = np.add.accumulate(np.append(0.0, lanes[::2] + lanes[1::2]))
    allowed = share * float(below[-1])
    whole = int(np.count_nonzero(below[1:] <= allowed))
    inside = np.sort(energy[bins == whole])
    running = np.add.accumulate(np.append(below[whole], inside))[1:]
    return x.size - int(np.count_nonzero(bins < whole)) - int(np.count_nonzero(running <= allowed))


def _scaled(x: Array) -> Array:
    """Magnitudes in float64; float64 ones scaled by a power of two, so that squares keep their range."""
    magnitude = np.abs(x).astype(np.float64)
    if x.dtype == np.float32:
        return magnitude
    exponent = math.frexp(float(magnitude.max()))[1]
    return magnitude * math.ldexp(1.0, min(max(-exponent, -1000), 1000))
