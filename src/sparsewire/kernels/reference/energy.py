"""Energies, Σ x² in float64: of an array, of what is sent of it, and how many entries hold a wanted share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .base import Array
from .dense import magnitude_bits, magnitude_edge, scatter_add

BLOCK_BYTES, LANES = 2048, 16


def energy(x: Array, threads: int = 1) -> float:
    """Σ x² in float64, the same whatever the threads; infinite where it is no number.

    1. Of every 2048 bytes, the squares go to 16 lanes by index, and these are added up in their order.
    2. The blocks' sums are added up in their order.
    """
    return in_order(block_energies(x))


def block_energies(x: Array, unit: float = 1.0) -> Array:
    """The blocks' sums, of x / unit."""
    size = BLOCK_BYTES // x.dtype.itemsize
    padded = np.zeros(-(-x.size // size) * size)
    lanes = np.zeros((padded.size // size, LANES))
    with np.errstate(all="ignore"):
        padded[: x.size] = np.square(x.astype(np.float64) / unit)
        for row in padded.reshape(-1, size // LANES, LANES).swapaxes(0, 1):
            lanes += row
        return np.add.accumulate(lanes, axis=1)[:, -1]


def in_order(blocks: Array) -> float:
    """A sum from the first number to the last; infinite where it is no number."""
    with np.errstate(all="ignore"):
        total = float(np.add.accumulate(np.append(0.0, blocks))[-1])
    return total if math.isfinite(total) else math.inf


def compensate_mean(
    residual: Array, x: Array, indices: Array, sent: Array, parts: Sequence[tuple[Array, Array]], scale: float,
    threads: int = 1,
) -> tuple[float, float]:  # fmt: skip
    """What is kept of a step: residual ← residual + x − what was sent + scale · Σ parts; in place.

    Returned are the energy (Σ of squares, see `energy`) of residual + x, and of its entries that were sent.
    """
    if residual.size != x.size:
        raise ValueError("the residual and x differ in size")
    with np.errstate(all="ignore"):
        total = residual + x
        energies = energy(total), _energy_at(total, indices)
        scatter_add(total, indices, sent, -1.0)
        for places, values in parts:
            scatter_add(total, places, values, scale)
    residual[:] = total
    return energies


def _energy_at(x: Array, indices: Array) -> float:
    """The energy of some entries: added up in their order within a block, then block by block."""
    size = BLOCK_BYTES // x.dtype.itemsize
    if indices.size and not 0 <= indices[0] <= indices[-1] < x.size:
        raise ValueError("the entries do not fit x")
    return in_order(block_sums_at(indices, x[indices], -(-x.size // size)))


def block_sums_at(indices: Array, values: Array, count: int) -> Array:
    """The sums of squares in each of `count` blocks of some entries, in their order."""
    size = BLOCK_BYTES // values.dtype.itemsize
    return np.bincount(indices // size, np.square(values.astype(np.float64)), count)


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
    energies = _scaled(x) ** 2
    bins = (bits >> bits.dtype.type(np.finfo(x.dtype).nmant - 7)).astype(np.int64)
    lanes = np.bincount(2 * bins + np.arange(x.size) % 2, weights=energies, minlength=2 * int(bins.max()) + 2)
    below = np.add.accumulate(np.append(0.0, lanes[::2] + lanes[1::2]))
    allowed = share * float(below[-1])
    whole = int(np.count_nonzero(below[1:] <= allowed))
    inside = np.sort(energies[bins == whole])
    running = np.add.accumulate(np.append(below[whole], inside))[1:]
    return x.size - int(np.count_nonzero(bins < whole)) - int(np.count_nonzero(running <= allowed))


def _scaled(x: Array) -> Array:
    """Magnitudes in float64; float64 ones scaled by a power of two, so that squares keep their range."""
    magnitude = np.abs(x).astype(np.float64)
    if x.dtype == np.float32:
        return magnitude
    exponent = math.frexp(float(magnitude.max()))[1]
    return magnitude * math.ldexp(1.0, min(max(-exponent, -1000), 1000))
