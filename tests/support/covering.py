"""Rows that bring every two settings together, where the product of all settings would be too many to test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Few rows, one setting of each factor, in which every pair of settings of two factors occurs.

    Greedy: each row is begun with a pair that is still missing, and completed by what brings most others with it.
    """
    sizes = [len(factor) for factor in factors]
    missing = {pair for places in itertools.combinations(range(len(sizes)), 2) for pair in _pairs_of(sizes, *places)}
    rows = []
    while missing:
        row = _complete(dict(min(missing)), sizes, missing)
        missing -= set(itertools.combinations(enumerate(row), 2))
        rows.append(tuple(factor[at] for factor, at in zip(factors, row, strict=True)))
    return rows


def _pairs_of(sizes: Sequence[int], a: int, b: int) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    return (((a, i), (b, j)) for i in range(sizes[a]) for j in range(sizes[b]))


def _complete(row: dict[int, int], sizes: Sequence[int], missing: set[Any]) -> list[int]:
    for place, size in enumerate(sizes):
        if place not in row:
            row[place] = max(range(size), key=lambda at, place=place: _gain((place, at), row, missing))
    return [row[place] for place in range(len(sizes))]


def _gain(entry: tuple[int, int], row: dict[int, int], missing: set[Any]) -> int:
    return sum(tuple(sorted((entry, other))) in missing for other in row.items())
