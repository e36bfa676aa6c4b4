"""Frequency tables for rANS in few bits: a log-scale weight for each symbol, a whole, half or quarter octave apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .alphabet import MOST_SYMBOLS, MOST_VALUES
from .base import Bytes
from .rans import RANS_BITS
from .rice import pack_deltas, unpack_deltas

OCTAVES = 12
_QUARTERS = np.array([(16, 19, 23, 27)[i & 3] << (i >> 2) for i in range(4 * OCTAVES + 1)])
_WEIGHTS = [np.append(0, _QUARTERS[:: 4 >> bits]) for bits in (0, 1, 2)]


def frequency_table_encode(counts: NDArray[np.int64], resolution: int) -> tuple[Bytes, NDArray[np.uint32]]:
    """(the table, the frequencies that its decoder computes), which sum to 4096.

    A table has 2^resolution weights to the octave. Weights are numbered from the largest down: the first number is then
    small, and that of a symbol that does not occur is next to that of a rare one. The first two symbols are in the
    table only if they occur.
    """
    weights = _weights(resolution)
    if not 0 < counts.size <= MOST_SYMBOLS or int(counts.min()) < 0 or not 0 < int(counts.max()) <= MOST_VALUES:
        raise ValueError("counts are out of range")
    ideal = counts * int(weights[-1]) // int(counts.max())
    middles = (weights[1:-1] + weights[2:]) // 2
    chosen = np.where(counts > 0, np.searchsorted(middles, ideal, side="right") + 1, 0)
    sent = np.append(chosen[:2][chosen[:2] > 0], chosen[2:])
    return pack_deltas((weights.size - 1 - sent).astype(np.uint8)), _normalized(weights[chosen])


def frequency_table_decode(table: Bytes, symbols: int, outside: int, resolution: int) -> NDArray[np.uint32]:
    """The frequencies; bits 0 and 1 of `outside` say which of the first two symbols are in the table of `symbols`."""
    weights = _weights(resolution)
    here = [symbol for symbol in (0, 1) if outside >> symbol & 1]
    if not (0 <= outside < 4 and len(here) <= symbols <= MOST_SYMBOLS - 2 + len(here)):
        raise ValueError("a frequency table is too short or too long")
    down = unpack_deltas(table, symbols).astype(np.int64)
    if symbols and int(down.max()) >= weights.size:
        raise ValueError("a frequency table is out of range")
    found = np.zeros(symbols + 2 - len(here), np.int64)
    sent = weights[weights.size - 1 - down]
    found[here], found[2:] = sent[: len(here)], sent[len(here) :]
    return _normalized(found)


def _weights(resolution: int) -> NDArray[np.int64]:
    if not 0 <= resolution < len(_WEIGHTS):
        raise ValueError("a frequency table is out of range")
    return _WEIGHTS[resolution]


def _normalized(weights: NDArray[np.int64]) -> NDArray[np.uint32]:
    """In proportion to the weights, rounded down, at least 1; the first of the largest takes the rest."""
    if not weights.any():
        raise ValueError("a frequency table is empty")
    frequencies = np.where(weights > 0, np.maximum(1, (weights << RANS_BITS) // int(weights.sum())), 0)
    frequencies[np.argmax(weights)] += 2**RANS_BITS - int(frequencies.sum())
    if frequencies[np.argmax(weights)] < 1:
        raise ValueError("a frequency table leaves nothing for the largest")
    return frequencies.astype(np.uint32)
