"""How cells become symbols: what costs the least for the histogram at hand, in integers.

Costs are in 1/65536 of a bit, with a logarithm made of a table and straight lines, so every machine finds the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .base import Array
from .lattice import LATTICE_BINS, LATTICE_ROWS, log_linear

MOST_SYMBOLS = 96
MOST_VALUES = 2**40
TABLE_BITS = 3  # what a symbol's entry costs, about
_BIN = np.arange(LATTICE_BINS)
_LOWEST_CELL = np.where(_BIN < 32, _BIN, (32 + _BIN % 32) << np.maximum(_BIN // 32 - 1, 0))


def _logarithms() -> NDArray[np.int64]:
    """65536 · log2(1 + i/256), rounded: a number that is squared 17 times shows 17 binary digits of its logarithm."""
    number, digits = np.arange(256, 512, dtype=np.uint64) << np.uint64(23), np.zeros(256, np.uint64)
    for _ in range(17):
        number = number * number >> np.uint64(31)
        digits = 2 * digits + (number >> np.uint64(32))
        number >>= number >> np.uint64(32)
    return np.append((digits + 1) // 2, 65536).astype(np.int64)


_LOGARITHMS = _logarithms()


def lattice_layout(counts: NDArray[np.int64]) -> tuple[int, int, int, NDArray[np.int64]]:
    """(shift, precision, signs) for `lattice_split` that cost the least, and how often each symbol comes then.

    Counts are those of `lattice_fit`. First signs are apart, then they go into the symbols if that pays.
    """
    if counts.size != 2 * LATTICE_ROWS or int(counts.min()) < 0 or sum(counts.tolist()) > MOST_VALUES:
        raise ValueError("counts are out of range")
    pairs = counts.reshape(-1, 2)
    per_bin, under = pairs[:LATTICE_BINS].sum(axis=1), int(pairs[:LATTICE_BINS, 1].sum())
    inside = int(per_bin.sum())
    cost, (shift, precision) = min((_cost(pairs, *option), option) for option in _options(per_bin))
    plain = _symbols(pairs, shift, precision, False)
    if under in (0, inside):
        return shift, precision, -1 if under else 0, _trimmed(plain)
    folded = _symbols(pairs, shift, precision, True)
    extra = int(per_bin @ _bins(shift, precision)[1]) << 16
    if folded.size <= MOST_SYMBOLS and _bits(folded) + extra < cost + (inside << 16):
        return shift, precision, 2, folded
    return shift, precision, 1, plain


def _options(per_bin: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(shift, precision): classes for about 8 to 32 steps up to the mean cell; finer ones cost table, not bits."""
    mean = int(per_bin @ _LOWEST_CELL) // max(1, int(per_bin.sum()))
    middle = max(0, mean.bit_length() - 4)
    for shift in range(max(0, middle - 1), middle + 2):
        for precision in range(1, 5):
            yield shift, precision


def _bins(shift: int, precision: int) -> tuple[Array, Array]:
    """(class, extra bits) of each bin of the histogram."""
    kinds, below = log_linear(_LOWEST_CELL >> shift, precision)
    return kinds, below + shift


def _symbols(pairs: NDArray[np.int64], shift: int, precision: int, folded: bool) -> NDArray[np.int64]:
    """How often each symbol comes, up to the last one inside the grid that does."""
    kinds = _bins(shift, precision)[0]
    counts = np.zeros(2 + 2 * LATTICE_BINS, np.int64)
    for side in (0, 1):
        np.add.at(counts, 2 + (2 * kinds + side if folded else kinds), pairs[:LATTICE_BINS, side])
    counts[:2] = pairs[LATTICE_BINS:, 0]
    return counts[: max(3, _trimmed(counts).size)]


def _trimmed(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts[: int(counts.nonzero()[0].max(initial=0)) + 1]


def _cost(pairs: NDArray[np.int64], shift: int, precision: int) -> int:
    """About how much all but the signs take; more than anything for too many symbols."""
    symbols = _symbols(pairs, shift, precision, False)
    extra = int(pairs[:LATTICE_BINS].sum(axis=1) @ _bins(shift, precision)[1])
    return _bits(symbols) + (extra << 16) if symbols.size <= MOST_SYMBOLS else 2**63 - 1


def _bits(counts: NDArray[np.int64]) -> int:
    """The entropy of symbols that come so often, and their table."""
    some = np.append(counts[counts > 0], max(1, int(counts.sum())))
    weighted = (some * _log2(some)).tolist()
    return weighted[-1] - sum(weighted[:-1]) + (TABLE_BITS * counts.size << 16)


def _log2(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """65536 · log2 of numbers from 1 on: octave, 8 bits that choose a line, 16 bits on it."""
    octave = np.frexp(numbers.astype(np.float64))[1].astype(np.int64) - 1
    scaled = numbers << np.maximum(0, 24 - octave) >> np.maximum(0, octave - 24)
    line, along = scaled >> 16 & 255, scaled & 65535
    return (octave << 16) + _LOGARITHMS[line] + ((_LOGARITHMS[line + 1] - _LOGARITHMS[line]) * along >> 16)
