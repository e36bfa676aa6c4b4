"""Rows that stand for a product of settings lose no pair of them."""

from __future__ import annotations

import itertools
import math

import pytest
from covering import pairwise


@pytest.mark.parametrize("sizes", [(2, 5), (5, 2, 4), (6, 5, 9, 2), (1, 3, 1, 2)])
def test_every_two_settings_meet_in_few_rows(sizes: tuple[int, ...]) -> None:
    factors = [[f"{place} {at}" for at in range(size)] for place, size in enumerate(sizes)]
    rows = pairwise(*factors)
    for pair in itertools.combinations(range(len(sizes)), 2):
        met = {tuple(row[place] for place in pair) for row in rows}
        assert met == set(itertools.product(*(factors[place] for place in pair)))
    assert len(rows) <= 1.5 * math.prod(sorted(sizes)[-2:])
