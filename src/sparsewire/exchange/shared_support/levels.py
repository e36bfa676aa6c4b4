"""Integers whose sum over the ranks an engine can hold: a few levels of one unit that all ranks share.

A rank's number is unit × level, level = −L … L. `ternary` has L = 1, `int8` L = 127 // ranks, at least 1. The unit has
so few significant bits that unit × level is a number of the tensor's own type, exactly: what a rank counts as sent is
what it added to the sum.

Sums of P ranks lie in −LP … LP. They travel as int8 where they fit and nothing is smaller; otherwise as digits of base
2LP + 1, as many as fill the 63 bits of an int64: 19 ternary numbers in 8 bytes on 4 ranks, 12 on 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.values.sums import mean
from sparsewire.core.sparse import LARGEST
from sparsewire.kernels import Array

# Significant bits, and the exponent of the smallest number above 0.
PRECISION = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149), "float64": (53, -1074)}
BLOCK = 2**15  # numbers that stay in the cache through several passes
WORD = 63  # bits of an int64 that a sum may fill


def fitted_scale(values: Array) -> float:
    """The magnitude that stands for all in a ternary code: the mean of those above 0.7 of the mean of all.

    Li et al.'s rule for ternary weights (arXiv 1605.04711): close to the least squared error for bell curves, and the
    mean for the magnitudes that a top-k selection leaves.
    """
    sizes = np.abs(values)
    edge = 0.7 * mean(sizes)
    return mean(sizes[sizes >= edge])


def unit_for(scale: float, levels: int, dtype: str) -> float:
    """The smallest unit with levels × unit ≥ scale whose multiples up to `levels` are numbers of the dtype.

    0 where there is nothing to scale, or where it is not finite.
    """
    if not 0 < scale < math.inf:
        return 0.0
    bits, least = PRECISION[dtype]
    step = max(min(scale, LARGEST[dtype]) / levels, math.ulp(0.0))
    exponent = max(math.frexp(step)[1] - (bits - levels.bit_length()), least)
    count = math.ldexp(step, -exponent)
    unit = math.ceil(count) * 2.0**exponent  # exact, or infinite
    return unit if levels * unit <= LARGEST[dtype] else math.floor(count) * 2.0**exponent


def to_levels(values: Array, unit: float, levels: int, key: int | None) -> Array:
    """int8 levels: the nearest, or with a key at random so that the expectation is the value."""
    out = np.zeros(values.size, np.int8)
    for start in range(0, values.size if unit else 0, BLOCK):
        part = slice(start, start + BLOCK)
        out[part] = _levels(values[part], unit, levels, key, start)
    return out


def _levels(values: Array, unit: float, levels: int, key: int | None, start: int) -> Array:
    with np.errstate(over="ignore"):
        exact = values / values.dtype.type(unit)
    if key is None:
        rounded = np.rint(exact, out=exact)
    else:
        noise = (kernels.random_bits(key, start, values.size) >> np.uint64(40)) * 2.0**-24
        rounded = np.floor(np.add(noise, exact, out=noise), out=noise)
    return np.clip(rounded, -levels, levels, out=rounded)


@dataclass(frozen=True)
class Carrier:
    """How levels −L … L of `ranks` ranks travel, so that an engine's sum of integers cannot overflow."""

    levels: int
    ranks: int

    @property
    def base(self) -> int:
        return 2 * self.levels * self.ranks + 1

    @property
    def digits(self) -> int:
        """Numbers in a word of 8 bytes."""
        return int(WORD / math.log2(self.base))

    @property
    def one_per_byte(self) -> bool:
        """Whether each number is an int8 of its own."""
        return self.digits <= 8 and self.levels * self.ranks <= 127

    def pack(self, numbers: Array) -> Array:
        """Levels as integers to be summed."""
        if self.one_per_byte:
            return numbers
        rows = -(-numbers.size // self.digits)
        digits = np.zeros((self.digits, rows), np.int64)
        digits.reshape(-1)[: numbers.size] = numbers.astype(np.int64) + self.levels
        words = np.zeros(rows, np.int64)
        for row in digits[::-1]:
            words = words * self.base + row
        return words

    def unpack(self, total: Array, count: int) -> Array:
        """The sums of `count` levels; int8 or int64."""
        if self.one_per_byte:
            return total
        digits, rest = np.empty((self.digits, total.size), np.int64), total
        for row in digits:
            rest, row[:] = np.divmod(rest, self.base)
        return digits.reshape(-1)[:count] - self.levels * self.ranks
