"""How often symbols come, in few bits each: weights in steps of half or a quarter of an octave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..kernels import Array, Bytes

TOTAL = 4096
MOST_SYMBOLS = 96  # more could leave nothing for the most frequent one
OCTAVES = 12
_QUARTERS = np.array([(16, 19, 23, 27)[i & 3] << (i >> 2) for i in range(4 * OCTAVES + 1)])
_LADDERS = {bits: np.append(0, _QUARTERS[:: 4 >> bits]) for bits in (0, 1, 2)}
_MIDDLES = {bits: (ladder[1:-1] + ladder[2:]) // 2 for bits, ladder in _LADDERS.items()}


def weigh(counts: Array, resolution: int) -> Bytes:
    """The step of each symbol on a ladder with 2^resolution steps to the octave; 0 for what does not come."""
    ideal = counts.astype(np.int64) * int(_QUARTERS[-1]) // int(counts.max())
    return np.where(counts > 0, np.searchsorted(_MIDDLES[resolution], ideal, side="right") + 1, 0).astype(np.uint8)


def frequencies(steps: Bytes, resolution: int) -> NDArray[np.uint32]:
    """Out of 4096: in proportion to the weights, rounded down, at least 1; the first of the largest takes the rest."""
    ladder = _LADDERS.get(resolution, _QUARTERS[:0])
    if not steps.size or steps.size > MOST_SYMBOLS or not steps.any() or int(steps.max()) >= ladder.size:
        raise ValueError("a table of frequencies is out of range")
    weights = ladder[steps]
    shares = np.where(steps > 0, np.maximum(1, weights * TOTAL // int(weights.sum())), 0)
    shares[np.argmax(weights)] += TOTAL - int(shares.sum())
    if shares[np.argmax(weights)] < 1:
        raise ValueError("a table of frequencies leaves nothing for the largest")
    return shares.astype(np.uint32)


def pack(steps: Bytes, resolution: int) -> Bytes:
    """Steps from the top, so that the table starts small and what does not come is next to what hardly comes."""
    return kernels.pack_deltas((_LADDERS[resolution].size - 1 - steps).astype(np.uint8))


def unpack(data: Bytes, count: int, resolution: int) -> Bytes:
    top = _LADDERS.get(resolution, _QUARTERS[:0]).size - 1
    down = kernels.unpack_deltas(data, count)
    if count and int(down.max()) > top:
        raise ValueError("a table of frequencies is out of range")
    return (top - down.astype(np.int64)).astype(np.uint8)
