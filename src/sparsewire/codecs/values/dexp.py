"""`fit_dexp`: sorted values as the sum of two exponentials (Fit-DExp of DeepReduce, arXiv 2102.03112).

Results are the same on every machine: sums go one after the other, powers and exponentials are products, and linear
systems are solved in Python's floats.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from sparsewire.core.binary import Reader, from_bf16, join, to_bf16
from sparsewire.kernels import Array

from .curve import CurveCodec, exponent_of, falling, scaled, take_coefficients, take_magnitudes

LARGEST_RATE, SMALLEST_RATE = 256.0, -(2.0**40)
TINY = 5


@dataclass(frozen=True)
class FitDExp(CurveCodec):
    """Sorted values as a·e^(bx) + c·e^(dx), x = 0 … 1, four numbers a sign; the order as a map of ranks.

    For the magnitudes y of each sign, from the largest down:

    1. S and SS, the first and second cumulative trapezoid integrals of y.
    2. Least squares y ≈ A·SS + B·S + C·x + D, a 4×4 system; b and d are ½(B ± √(B² + 4A)).
    3. Least squares y ≈ a·e^(bx) + c·e^(dx), a 2×2 system.
    4. The drawn curve does not ascend, and never goes below 0. Where it would start above the largest magnitude, 3. is
       done again with a + c held at that.

    Where this differs from the paper: rates travel in 16 bits, which costs nothing since the factors are fitted to them
    as rounded; a single exponential and a constant compete, and the curve that is nearest once rounded is sent, so that
    complex exponents and singular systems do no harm; step 4; a sign with at most 5 values is sent as it is.
    """

    id = "fit_dexp"
    wire_id = 8

    rank_bits: int | None = None

    def fit(self, magnitudes: Array) -> bytes:
        if magnitudes.size <= TINY:
            return join(magnitudes)
        exponent, dtype = exponent_of(float(magnitudes[0])), magnitudes.dtype
        y = scaled(magnitudes, -exponent)
        with np.errstate(all="ignore"):
            curves = [Curve.fitted(y, rates, magnitudes[0]) for rates in candidates(y)]
            drawn = ((curve, curve.draw(y.size, dtype)) for curve in curves if sum(curve.factors) <= magnitudes[0])
            best = min(drawn, key=lambda pair: square_error(y, scaled(pair[1], -exponent)))[0]
        return best.write(dtype)

    def curve_limit(self, item: int) -> int:
        return TINY * item

    def draw(self, reader: Reader, count: int, dtype: np.dtype[np.floating]) -> Array:
        if count <= TINY:
            return take_magnitudes(reader, count, dtype)
        with np.errstate(all="ignore"):
            return Curve.read(reader, dtype).draw(count, dtype)


@dataclass(frozen=True)
class Curve:
    """Σ factor · e^(rate·x) of one or two terms, rounded as in the section."""

    factors: list[float]
    rates: list[float]

    @classmethod
    def fitted(cls, y: Array, rates: list[float], top: np.floating) -> Curve:
        """The best factors for the rounded rates; y is scaled, `top` is its first number before scaling."""
        rates = [from_bf16(to_bf16(min(max(rate, SMALLEST_RATE), LARGEST_RATE), nearest=True)) for rate in rates]
        columns = [powers(rate, y.size) for rate in rates]
        factors = solve_least_squares(columns, y) or [math.inf]
        if sum(factors) > y[0]:
            factors = starting_at(float(y[0]), columns, y)
        return cls([*rounded(factors, top), 0.0][:2], [*rates, 0.0][:2])

    def write(self, dtype: np.dtype[np.floating]) -> bytes:
        return join(np.array(self.factors, dtype), struct.pack("<HH", *map(to_bf16, self.rates)))

    @classmethod
    def read(cls, reader: Reader, dtype: np.dtype[np.floating]) -> Curve:
        factors = take_coefficients(reader, 2, dtype, float(np.finfo(dtype).max)).tolist()
        rates = [from_bf16(bits) for bits in struct.unpack("<HH", reader.take(4))]
        if not all(SMALLEST_RATE <= rate <= LARGEST_RATE for rate in rates):
            raise ValueError("a rate is larger than any fit gives")
        if not abs(factors[0] + factors[1]) <= float(np.finfo(dtype).max):
            raise ValueError("a curve does not begin at a finite number")
        return cls(factors, rates)

    def draw(self, count: int, dtype: np.dtype[np.floating]) -> Array:
        (a, c), (b, d) = self.factors, self.rates
        total = powers(b, count)
        total *= a
        total += c * powers(d, count)
        curve = total.astype(dtype)
        return falling(np.clip(curve, dtype.type(0), max(curve[0], dtype.type(0))))


def rounded(factors: list[float], top: np.floating) -> list[float]:
    """Scaled back, in the dtype of `top`; the largest is rounded down until their sum is at most `top`."""
    whole = scaled(np.array(factors), exponent_of(float(top))).astype(top.dtype)
    most = np.argmax(np.abs(whole))
    while top < whole.astype(np.float64).sum() < np.inf:
        whole[most] = np.nextafter(whole[most], whole.dtype.type(-np.inf))
    return [float(factor) for factor in whole]


def starting_at(top: float, columns: list[Array], y: Array) -> list[float]:
    """The factors that come closest to y of those whose sum is `top`."""
    if len(columns) == 1:
        return [top]
    apart = columns[0] - columns[1]
    (first,) = solve_least_squares([apart], y - top * columns[1]) or [0.0]
    return [first, top - first]


def candidates(y: Array) -> list[list[float]]:
    """Rates to try: none, one exponential, two."""
    step = 1.0 / (y.size - 1)
    x = np.arange(y.size) * step
    first = integral(y, step)
    pair = solve_least_squares([integral(first, step), first, x, np.ones(y.size)], y)
    single = solve_least_squares([first, np.ones(y.size)], y)
    proposals = [[0.0]]
    if single:
        proposals.append([single[0]])
    if pair and (root := pair[1] * pair[1] + 4.0 * pair[0]) >= 0:
        proposals.append([0.5 * (pair[1] - math.sqrt(root)), 0.5 * (pair[1] + math.sqrt(root))])
    return [rates for rates in proposals if all(map(math.isfinite, rates))]


def powers(rate: float, count: int) -> Array:
    """e^(rate·x) at `count` even points of 0 … 1, as products of squares: the same bits everywhere."""
    base, out, done = exponential(rate / (count - 1)), np.ones(count), 1
    while done < count:
        np.multiply(out[: count - done][:done], base, out=out[done : 2 * done])
        done, base = 2 * done, base * base
    return out


def exponential(x: float) -> float:
    """e^x by halving x, a Taylor series, and squaring: additions and products only.

    >>> abs(exponential(-2.5) - 0.0820849986238988) < 1e-15
    True
    """
    if x < -700.0:
        return 0.0
    halvings = 0
    while abs(x) > 0.0625:
        x, halvings = x * 0.5, halvings + 1
    total = 1.0
    for i in range(12, 0, -1):
        total = 1.0 + x * total / i
    for _ in range(halvings):
        total *= total
    return total


def integral(y: Array, step: float) -> Array:
    """The trapezoid integral up to every point."""
    return np.concatenate([[0.0], np.cumsum((y[1:] + y[:-1]) * (0.5 * step))])


def dot(a: Array, b: Array) -> float:
    return float(np.cumsum(a * b)[-1])


def square_error(y: Array, curve: Array) -> float:
    apart = y - curve
    return dot(apart, apart)


def solve_least_squares(columns: list[Array], y: Array) -> list[float] | None:
    """The factors of the columns that come closest to y; None if the normal equations are singular."""
    return eliminate([[*(dot(a, b) for b in columns), dot(a, y)] for a in columns])


def eliminate(rows: list[list[float]]) -> list[float] | None:
    """The solution of a small system [matrix | right side], by Gauss–Jordan with the largest pivots."""
    size = len(rows)
    for i in range(size):
        best = max(range(i, size), key=lambda j: abs(rows[j][i]))
        rows[i], rows[best] = rows[best], rows[i]
        pivot = rows[i][i]
        if not 1e-300 < abs(pivot) < math.inf:
            return None
        rows[i] = [number / pivot for number in rows[i]]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[-1] for row in rows]
