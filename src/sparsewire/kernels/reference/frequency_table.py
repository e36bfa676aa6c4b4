"""Frequency tables for rANS in few bits: log-scale weights 1, ½ or ¼ octave apart, or the exact frequencies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .alphabet import MOST_SYMBOLS, MOST_VALUES, log2
from .base import Bytes
from .bits import pack_uneven
from .rans import RANS_BITS
from .rice import pack_deltas, unpack_deltas, zigzag

OCTAVES = 12
EXACT = 3  # the resolution of a table of exact frequencies
_QUARTERS = np.array([(16, 19, 23, 27)[i & 3] << (i >> 2) for i in range(4 * OCTAVES + 1)])
_WEIGHTS = [np.append(0, _QUARTERS[:: 4 >> bits]) for bits in (0, 1, 2)]


def frequency_table_resolution(counts: NDArray[np.int64]) -> int:
    """The resolution at which table and symbols take the fewest bits; the coarsest of equals."""
    return min(range(EXACT + 1), key=lambda resolution: _cost(counts, *frequency_table_encode(counts, resolution)))


def _cost(counts: NDArray[np.int64], table: Bytes, frequencies: NDArray[np.uint32]) -> int:
    """Of the table and, by its entropy, of the rANS stream, in 1/65536 of a bit."""
    occurs = counts > 0
    bits = (RANS_BITS << 16) - log2(frequencies[occurs].astype(np.int64))
    return (8 * table.size << 16) + int(counts[occurs] @ bits)


def frequency_table_encode(counts: NDArray[np.int64], resolution: int) -> tuple[Bytes, NDArray[np.uint32]]:
    """(the table, the frequencies that its decoder finds), which sum to 4096.

    Resolutions 0, 1, 2: 2^resolution weights to the octave. They are numbered from the largest down: the first number
    is then small, and that of a symbol that does not occur is next to that of a rare one. Resolution 3: the frequencies
    themselves. The first two symbols are in the table only if they occur.
    """
    if not 0 < counts.size <= MOST_SYMBOLS or int(counts.min()) < 0 or not 0 < sum(counts.tolist()) <= MOST_VALUES:
        raise ValueError("counts are out of range")
    listed = (counts > 0) | (np.arange(counts.size) > 1)
    if resolution == EXACT:
        frequencies = _normalized(counts)
        return _pack_exact(frequencies[listed].astype(np.int64)), frequencies
    weights = _weights(resolution)
    ideal = counts * int(weights[-1]) // int(counts.max())
    middles = (weights[1:-1] + weights[2:]) // 2
    chosen = np.where(counts > 0, np.searchsorted(middles, ideal, side="right") + 1, 0)
    return pack_deltas((weights.size - 1 - chosen[listed]).astype(np.uint8)), _normalized(weights[chosen])


def frequency_table_decode(table: Bytes, symbols: int, outside: int, resolution: int) -> NDArray[np.uint32]:
    """The frequencies; bits 0 and 1 of `outside` say which of the first two symbols are in the table of `symbols`."""
    here = [symbol for symbol in (0, 1) if outside >> symbol & 1]
    if not (0 <= outside < 4 and len(here) <= symbols <= MOST_SYMBOLS - 2 + len(here)):
        raise ValueError("a frequency table is too short or too long")
    exact = resolution == EXACT
    listed = _unpack_exact(table, symbols) if exact else _unpack_weights(table, symbols, _weights(resolution))
    frequencies = np.zeros(symbols + 2 - len(here), np.int64)
    frequencies[here], frequencies[2:] = listed[: len(here)], listed[len(here) :]
    return frequencies.astype(np.uint32) if exact else _normalized(frequencies)


def _unpack_weights(table: Bytes, symbols: int, weights: NDArray[np.int64]) -> NDArray[np.int64]:
    down = unpack_deltas(table, symbols).astype(np.int64)
    if symbols and int(down.max()) >= weights.size:
        raise ValueError("a frequency table is out of range")
    return weights[weights.size - 1 - down]


def _pack_exact(frequencies: NDArray[np.int64]) -> Bytes:
    """Each as the change of its bit length, zigzag-coded in unary, and the bits below its leading one."""
    lengths = np.frexp(frequencies.astype(np.float64))[1].astype(np.int64)
    zeros, below = zigzag(np.diff(RANS_BITS + 1 - lengths, prepend=0)), np.maximum(lengths, 1) - 1
    codes = 1 << zeros | (frequencies & (1 << below) - 1) << zeros + 1
    return pack_uneven(codes.astype(np.uint64), (zeros + 1 + below).astype(np.uint8))


def _unpack_exact(table: Bytes, symbols: int) -> NDArray[np.int64]:
    if table.size > 5 * symbols:
        raise ValueError("a frequency table is too long")
    stream, at, down = int.from_bytes(table.tobytes(), "little"), 0, 0
    frequencies = np.zeros(symbols, np.int64)
    for i in range(symbols):
        rest = stream >> at
        zeros = (rest & -rest).bit_length() - 1
        down += -(zeros + 1) // 2 if zeros & 1 else zeros // 2
        if zeros < 0 or not 0 <= down <= RANS_BITS + 1:
            raise ValueError("a frequency is out of range")
        below = max(0, RANS_BITS - down)
        frequencies[i] = 1 << below | (rest >> zeros + 1) & (1 << below) - 1 if down <= RANS_BITS else 0
        at += zeros + 1 + below
    if table.size != (at + 7) // 8 or stream >> at or int(frequencies.sum()) != 2**RANS_BITS:
        raise ValueError(f"frequencies do not sum to {2**RANS_BITS}, or the table has another length")
    return frequencies


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
