"""Curves as pictures show them: losses smoothed and thinned out, and fronts of error and bits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST = 200  # points of a curve that is drawn


def smooth(losses: Sequence[float]) -> list[float]:
    """The mean of the last fortieth of all steps at each step."""
    width = max(1, len(losses) // 40)
    return [statistics.fmean(losses[max(0, end - width) : end]) for end in range(1, len(losses) + 1)]


def thinned(values: Sequence[float]) -> list[tuple[int, float]]:
    """(place, value) of so many as a picture can show, the last among them."""
    stride = max(1, -(-len(values) // MOST))
    places = [*range(0, len(values) - 1, stride), len(values) - 1]
    return [(place, values[place]) for place in places]


def front(points: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The Pareto front of points with an error and bits, by ascending error."""
    kept: list[Mapping[str, Any]] = []
    for point in sorted(points, key=lambda one: (one["error"], one["bits"])):
        if not kept or point["bits"] < kept[-1]["bits"]:
            kept.append(point)
    return kept
