"""How often symbols come, in few bits each: weights in steps of a whole, half or quarter octave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import Bytes
from .layout import MOST_SYMBOLS, MOST_VALUES
from .rans import RANS_BITS
from .rice import pack_deltas, unpack_deltas

OCTAVES = 12
_QUARTERS = np.array([(16, 19, 23, 27)[i & 3] << (i >> 2) for i in range(4 * OCTAVES + 1)])
_LADDERS = [np.append(0, _QUARTERS[:: 4 >> bits]) for bits in (0, 1, 2)]


def ladder_encode(counts: NDArray[np.int64], resolution: int) -> tuple[Bytes, NDArray[np.uint32]]:
    """(a table of how often each symbol comes, the frequencies that its reader will find), out of 4096.

    There are 2^resolution steps to the octave. The table has steps from the top, so that it starts small and what does
    not come is next to what hardly comes. The first two symbols are in it only if they come.
    """
    ladder = _ladder(resolution)
    if not 0 < counts.size <= MOST_SYMBOLS or int(counts.min()) < 0 or not 0 < int(counts.max()) <= MOST_VALUES:
        raise ValueError("counts are out of range")
    ideal = counts * int(ladder[-1]) // int(counts.max())
    middles = (ladder[1:-1] + ladder[2:]) // 2
    steps = np.where(counts > 0, np.searchsorted(middles, ideal, side="right") + 1, 0)
    sent = np.append(steps[:2][steps[:2] > 0], steps[2:])
    return pack_deltas((ladder.size - 1 - sent).astype(np.uint8)), _frequencies(ladder[steps])


def ladder_decode(table: Bytes, symbols: int, outside: int, resolution: int) -> NDArray[np.uint32]:
    """The frequencies; bits 0 and 1 of `outside` say which of the first two symbols are among the `symbols` sent."""
    ladder = _ladder(resolution)
    here = [place for place in (0, 1) if outside >> place & 1]
    if not (0 <= outside < 4 and len(here) <= symbols <= MOST_SYMBOLS - 2 + len(here)):
        raise ValueError("a table of frequencies is too short or too long")
    down = unpack_deltas(table, symbols).astype(np.int64)
    if symbols and int(down.max()) >= ladder.size:
        raise ValueError("a table of frequencies is out of range")
    weights = np.zeros(symbols + 2 - len(here), np.int64)
    sent = ladder[ladder.size - 1 - down]
    weights[here], weights[2:] = sent[: len(here)], sent[len(here) :]
    return _frequencies(weights)


def _ladder(resolution: int) -> NDArray[np.int64]:
    if not 0 <= resolution < len(_LADDERS):
        raise ValueError("a table of frequencies is out of range")
    return _LADDERS[resolution]


def _frequencies(weights: NDArray[np.int64]) -> NDArray[np.uint32]:
    """In proportion to the weights, rounded down, at least 1; the first of the largest takes the rest."""
    if not weights.any():
        raise ValueError("a table of frequencies is empty")
    shares = np.where(weights > 0, np.maximum(1, (weights << RANS_BITS) // int(weights.sum())), 0)
    shares[np.argmax(weights)] += 2**RANS_BITS - int(shares.sum())
    if shares[np.argmax(weights)] < 1:
        raise ValueError("a table of frequencies leaves nothing for the largest")
    return shares.astype(np.uint32)
