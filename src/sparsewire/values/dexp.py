"""`fit_dexp`: sorted values as the sum of two exponentials (Fit-DExp of DeepReduce, arXiv 2102.03112).

Nothing here leaves the order of additions or the digits of an exponential to the machine: sums go one after the other,
powers are products, systems are eliminated in Python's own floats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..binary import Reader, join
from ..kernels import Array
from .curve import CurveCodec, exponent_of, falling, scaled, take_coefficients, take_magnitudes

LARGEST_FACTOR, LARGEST_RATE, SMALLEST_RATE = 2.0**60, 256.0, -(2.0**40)
TINY = 5


@dataclass(frozen=True)
class FitDExp(CurveCodec):
    """Sorted values as a·e^(bx) + c·e^(dx), x = 0 … 1, four numbers a sign; the order as a map of ranks.

    For the magnitudes y of each sign, from the largest down:

    1. S and SS, the first and second cumulative trapezoid integrals of y.
    2. Least squares y ≈ A·SS + B·S + C·x + D, a 4×4 system; b and d are ½(B ± √(B² + 4A)).
    3. Least squares y ≈ a·e^(bx) + c·e^(dx), a 2×2 system.
    4. The largest magnitude travels too: the drawn curve stays within 0 and it, and does not ascend.

    Where this differs from the paper: a single exponential and a constant compete, and the curve that is nearest once
    its coefficients are rounded is sent, so that complex exponents and singular systems do no harm; step 4; a sign
    with at most 5 values is sent as it is.
    """

    id = "fit_dexp"
    wire_id = 8

    rank_bits: int | None = None

    def fit(self, magnitudes: Array) -> bytes:
        if magnitudes.size <= TINY:
            return join(magnitudes)
        y, top = scaled(magnitudes, -exponent_of(float(magnitudes[0]))), magnitudes[:1]
        with np.errstate(all="ignore"):
            curves = [curve for rates in candidates(y) if usable(curve := with_factors(y, rates, magnitudes.dtype))]
            best = min(curves, key=lambda curve: square_error(y, evaluate(curve, y.size)))
        return join(top, np.array(best, magnitudes.dtype))

    def draw(self, reader: Reader, count: int, dtype: np.dtype[np.floating]) -> Array:
        if count <= TINY:
            return take_magnitudes(reader, count, dtype)
        top = take_magnitudes(reader, 1, dtype)[0]
        found = take_coefficients(reader, 4, dtype, -SMALLEST_RATE * LARGEST_FACTOR).tolist()
        if not usable(found):
            raise ValueError("a coefficient is larger than any fit gives")
        with np.errstate(all="ignore"):
            curve = scaled(evaluate(found, count), exponent_of(float(top))).astype(dtype)
        return falling(np.clip(curve, dtype.type(0), top))


def usable(curve: Sequence[float]) -> bool:
    """Whether a curve of these (a, b, c, d) stays finite."""
    a, b, c, d = curve
    rates, factors = (b, d), (a, c)
    return all(SMALLEST_RATE <= rate <= LARGEST_RATE for rate in rates) and all(
        abs(factor) <= LARGEST_FACTOR for factor in factors
    )


def candidates(y: Array) -> list[list[float]]:
    """Rates to try: both, one, none."""
    step = 1.0 / (y.size - 1)
    x = np.arange(y.size) * step
    first = integral(y, step)
    pair = solve_least_squares([integral(first, step), first, x, np.ones(y.size)], y)
    one = solve_least_squares([first, np.ones(y.size)], y)
    found = [[0.0]]
    if one:
        found.append([one[0]])
    if pair and (root := pair[1] * pair[1] + 4.0 * pair[0]) >= 0:
        found.append([0.5 * (pair[1] - math.sqrt(root)), 0.5 * (pair[1] + math.sqrt(root))])
    return found


def with_factors(y: Array, rates: list[float], dtype: np.dtype[np.floating]) -> list[float]:
    """(a, b, c, d), rounded to `dtype`; the factors go with the rates as rounded."""
    rates = [float(dtype.type(min(max(rate, SMALLEST_RATE), LARGEST_RATE))) for rate in rates]
    factors = solve_least_squares([powers(rate, y.size) for rate in rates], y) or [math.inf, 0.0]
    pairs = [*zip(factors, rates, strict=False), (0.0, 0.0)][:2]
    return [float(dtype.type(number)) for pair in pairs for number in pair]


def evaluate(curve: Sequence[float], count: int) -> Array:
    a, b, c, d = curve
    both: Array = a * powers(b, count) + c * powers(d, count)
    return both


def powers(rate: float, count: int) -> Array:
    """e^(rate·x) at `count` even points of 0 … 1, as products of squares: the same bits everywhere."""
    base, out = exponential(rate / (count - 1)), np.ones(1)
    while out.size < count:
        out = np.concatenate([out, out[: count - out.size] * base])
        base *= base
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
    """Of the curve as it will be clamped."""
    apart = y - falling(np.clip(curve, 0.0, y[0]))
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
