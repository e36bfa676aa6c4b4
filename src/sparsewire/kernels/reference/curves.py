"""Values sorted into curves; curves cut into segments and fitted with polynomials."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import Array

MOST_DEGREE = 15


def descending(values: Array) -> tuple[Array, NDArray[np.int64]]:
    """(magnitudes, positions): first all without a sign, then those with one, each from the largest magnitude down.

    Ties go by position. Magnitudes are compared as bits; −0.0 has a sign.
    """
    wide = values.dtype == np.float64
    keys = values.view(np.uint64) ^ np.uint64(2**63 - 1) if wide else values.view(np.uint32) ^ np.uint32(2**31 - 1)
    order = np.argsort(keys, kind="stable").astype(np.int64)
    return np.abs(values[order]), order


def chord_knots(curve: NDArray[np.float64], segments: int, least: int) -> NDArray[np.int64]:
    """Where a curve is cut: the starts of its segments and its end, at most `segments`, each of `least` points or more.

    One by one, at the point furthest from its segment's chord (ties: the first), where both sides keep enough points.
    """
    cuts = [0, curve.size]
    furthest = [_furthest(curve, 0, curve.size, least)] if curve.size else []
    while len(cuts) <= segments and furthest:
        best = max(range(len(furthest)), key=lambda i: (furthest[i][0], -i))
        distance, at = furthest[best]
        if not distance > 0:
            break
        cuts.insert(best + 1, at)
        halves = (cuts[best], at), (at, cuts[best + 2])
        furthest[best : best + 1] = [_furthest(curve, start, stop, least) for start, stop in halves]
    return np.array(cuts, np.int64)


def _furthest(curve: NDArray[np.float64], start: int, stop: int, least: int) -> tuple[float, int]:
    """(distance from the chord, place) of the best cut; distance 0 where there is none."""
    first, last = start + least, stop - least
    if first > last:
        return 0.0, start
    slope = (curve[stop - 1] - curve[start]) / float(max(1, stop - 1 - start))
    steps = np.arange(first - start, last - start + 1, dtype=np.float64)
    inside = curve[first : last + 1] if last < stop else curve[first:stop]
    distance = np.abs(inside - (curve[start] + slope * steps[: inside.size]))
    best = int(np.argmax(distance))
    return float(distance[best]), first + best


def _check(cuts: NDArray[np.int64], size: int, degree: int) -> None:
    if not 0 <= degree <= MOST_DEGREE:
        raise ValueError("a degree lies in 0 … 15")
    if cuts.size < 2 or cuts[0] != 0 or cuts[-1] != size or not (cuts[1:] > cuts[:-1]).all():
        raise ValueError("the cuts do not ascend over the curve")


def _gram(size: int, degree: int) -> tuple[list[NDArray[np.float64]], list[float]]:
    """Polynomials orthogonal on `size` even points of [−1, 1], and their squared norms: no system to solve."""
    span = float(max(1, size - 1))
    t = (2.0 * np.arange(size, dtype=np.float64) - (size - 1.0)) / span
    polynomials, norms = [np.ones(size)], [float(size)]
    for j in range(degree):
        b = float(j * j) * float(size * size - j * j) / (float(4 * j * j - 1) * span * span) if j else 0.0
        previous = polynomials[j - 1] if j else np.zeros(size)
        polynomials.append(t * polynomials[j] - b * previous)
        after = float((j + 1) * (j + 1)) * float(size * size - (j + 1) * (j + 1))
        norms.append(norms[j] * (after / (float(4 * (j + 1) * (j + 1) - 1) * span * span)))
    return polynomials, norms


def poly_fit(curve: NDArray[np.float64], cuts: NDArray[np.int64], degree: int) -> NDArray[np.float64]:
    """Least squares per segment, in its own orthogonal polynomials: degree + 1 coefficients a segment.

    A segment of fewer points than coefficients has zeros for those it cannot have.
    """
    _check(cuts, curve.size, degree)
    rows: list[float] = []
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        polynomials, norms = _gram(stop - start, min(degree, stop - start - 1))
        # cumsum adds one after the other, as the native loop does; sum would not.
        row = [np.cumsum(curve[start:stop] * p)[-1] / norm for p, norm in zip(polynomials, norms, strict=True)]
        rows += row + [0.0] * (degree + 1 - len(row))
    return np.array(rows, np.float64)


def poly_eval(coefficients: NDArray[np.float64], cuts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The fitted curve at every point, coefficients added in ascending order."""
    if cuts.size < 2 or coefficients.size % (cuts.size - 1) or not coefficients.size:
        raise ValueError("the coefficients do not fit the cuts")
    rows = coefficients.reshape(cuts.size - 1, -1)
    _check(cuts, int(cuts[-1]), rows.shape[1] - 1)
    out = np.empty(int(cuts[-1]), np.float64)
    for row, start, stop in zip(rows, cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        polynomials, _ = _gram(stop - start, min(row.size - 1, stop - start - 1))
        total = np.zeros(stop - start)
        for coefficient, polynomial in zip(row.tolist(), polynomials, strict=False):
            total = total + coefficient * polynomial
        out[start:stop] = total
    return out
