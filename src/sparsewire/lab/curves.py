"""Curves as pictures show them: losses smoothed, thinned out and with gaps, and fronts of error and bits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST = 200  # points of a curve that is drawn
FAR = 10  # times the first loss: what is above has diverged


def smooth(losses: Sequence[float | None]) -> list[float | None]:
    """The mean of the last fortieth of all steps at each step; None at those that have none, as of what diverged."""
    width = max(1, len(losses) // 40)
    ends = [losses[max(0, end - width) : end] for end in range(1, len(losses) + 1)]
    return [None if last[-1] is None else statistics.fmean(one for one in last if one is not None) for last in ends]


def pieces(points: Iterable[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """A curve without the points that have no value: what is on either side of them is not joined.

    >>> pieces([(1, 0.5), (2, 0.25), (3, None), (4, 0.125)])
    [[(1, 0.5), (2, 0.25)], [(4, 0.125)]]
    """
    split: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is not None:
            split[-1].append((at, value))
        elif split[-1]:
            split.append([])
    return [piece for piece in split if piece]


def bounded(curve: Sequence[float | None]) -> list[float | None]:
    """Without what is so high that nothing else could be seen beside it.

    >>> bounded([2.0, 1.5, 1e15, None])
    [2.0, 1.5, None, None]
    """
    most = FAR * abs(curve[0]) if curve and curve[0] else math.inf
    return [None if loss is None or loss > most else loss for loss in curve]


def thinned(values: Sequence[float | None]) -> list[tuple[int, float | None]]:
    """(index, value) of so many as a picture can show, the last among them."""
    stride = max(1, -(-len(values) // MOST))
    indices = [*range(0, len(values) - 1, stride), len(values) - 1]
    return [(index, values[index]) for index in indices]


def front(points: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The Pareto front of points with an error and bits, by ascending error."""
    kept: list[Mapping[str, Any]] = []
    for point in sorted(points, key=lambda one: (one["error"], one["bits"])):
        if not kept or point["bits"] < kept[-1]["bits"]:
            kept.append(point)
    return kept
