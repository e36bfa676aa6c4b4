"""The symbol alphabet of bin indices: the cheapest for the histogram at hand, found in integers.

Costs are in 1/65536 of a bit, with a logarithm made of a table and straight lines, so every machine finds the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .base import Array
from .bins import CLASSES, ROWS, log_linear

MOST_SYMBOLS = 96
MOST_VALUES = 2**40
TABLE_BITS = 3  # what a symbol takes in the frequency table, about
_CLASS = np.arange(CLASSES)
_LOWEST_BIN = np.where(_CLASS < 32, _CLASS, (32 + _CLASS % 32) << np.maximum(_CLASS // 32 - 1, 0))


def _logarithms() -> NDArray[np.int64]:
    """65536 · log2(1 + i/256), rounded: squaring a number 17 times gives 17 binary digits of its logarithm."""
    number, digits = np.arange(256, 512, dtype=np.uint64) << np.uint64(23), np.zeros(256, np.uint64)
    for _ in range(17):
        number = number * number >> np.uint64(31)
        digits = 2 * digits + (number >> np.uint64(32))
        number >>= number >> np.uint64(32)
    return np.append((digits + 1) // 2, 65536).astype(np.int64)


_LOGARITHMS = _logarithms()


def alphabet_fit(counts: NDArray[np.int64]) -> tuple[int, int, int, NDArray[np.int64]]:
    """(shift, precision, signs) for `symbols_encode` that cost the least, and the count of each symbol.

    Counts are those of `quantizer_fit`. Shift and precision are chosen with signs as extra bits; then signs become part
    of the symbols if that costs less.
    """
    if counts.size != 2 * ROWS or int(counts.min()) < 0 or sum(counts.tolist()) > MOST_VALUES:
        raise ValueError("counts are out of range")
    pairs = counts.reshape(-1, 2)
    per_class, under = pairs[:CLASSES].sum(axis=1), int(pairs[:CLASSES, 1].sum())
    inside = int(per_class.sum())
    cost, (shift, precision) = min((_cost(pairs, *option), option) for option in _options(per_class))
    full_counts = _symbol_counts(pairs, shift, precision, False)
    if under in (0, inside):
        return shift, precision, -1 if under else 0, _trimmed(full_counts)
    with_signs = _symbol_counts(pairs, shift, precision, True)
    extra = int(per_class @ _merged(shift, precision)[1]) << 16
    if with_signs.size <= MOST_SYMBOLS and _bits(with_signs) + extra < cost + (inside << 16):
        return shift, precision, 2, with_signs
    return shift, precision, 1, full_counts


def _options(per_class: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(shift, precision) to try: 8 to 32 shifted bins up to the mean bin; finer alphabets only cost a larger table."""
    mean = int(per_class @ _LOWEST_BIN) // max(1, int(per_class.sum()))
    middle = max(0, mean.bit_length() - 4)
    for shift in range(max(0, middle - 1), middle + 2):
        for precision in range(1, 5):
            yield shift, precision


def _merged(shift: int, precision: int) -> tuple[Array, Array]:
    """(the alphabet's class, extra bits) of each class of the histogram."""
    classes, below = log_linear(_LOWEST_BIN >> shift, precision)
    return classes, below + shift


def _symbol_counts(pairs: NDArray[np.int64], shift: int, precision: int, with_signs: bool) -> NDArray[np.int64]:
    """The count of each symbol, up to the last class of bins that occurs."""
    classes = _merged(shift, precision)[0]
    counts = np.zeros(2 + 2 * CLASSES, np.int64)
    for side in (0, 1):
        np.add.at(counts, 2 + (2 * classes + side if with_signs else classes), pairs[:CLASSES, side])
    counts[:2] = pairs[CLASSES:, 0]
    return counts[: max(3, _trimmed(counts).size)]


def _trimmed(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts[: int(counts.nonzero()[0].max(initial=0)) + 1]


def _cost(pairs: NDArray[np.int64], shift: int, precision: int) -> int:
    """About what everything but the signs takes; the largest integer where there are too many symbols."""
    symbols = _symbol_counts(pairs, shift, precision, False)
    extra = int(pairs[:CLASSES].sum(axis=1) @ _merged(shift, precision)[1])
    return _bits(symbols) + (extra << 16) if symbols.size <= MOST_SYMBOLS else 2**63 - 1


def _bits(counts: NDArray[np.int64]) -> int:
    """The entropy of symbols with these counts, and their frequency table."""
    positive = np.append(counts[counts > 0], max(1, int(counts.sum())))
    weighted = (positive * log2(positive)).tolist()
    return weighted[-1] - sum(weighted[:-1]) + (TABLE_BITS * counts.size << 16)


def log2(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """65536 · log2 of numbers from 1 on: octave, 8 bits that choose a line, 16 bits on it."""
    octave = np.frexp(numbers.astype(np.float64))[1].astype(np.int64) - 1
    scaled = numbers << np.maximum(0, 24 - octave) >> np.maximum(0, octave - 24)
    line, along = scaled >> 16 & 255, scaled & 65535
    return (octave << 16) + _LOGARITHMS[line] + ((_LOGARITHMS[line + 1] - _LOGARITHMS[line]) * along >> 16)
