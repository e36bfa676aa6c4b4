"""The exchanges that `test_exchange_laws.py` holds to the laws: one row each, or one per setting that matters."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

SUPPORTS, SUMS = ("pool", "leader", "mask"), ("float32", "bfloat16", "int8", "ternary")


@dataclass(frozen=True)
class Row:
    """`rounding`: of a sum, relative to the largest number in it; more than float32's where the engine adds coarsely.

    `collectives`: the most that one call needs, however many tensors it carries; None if that grows with the ranks.
    `every`: which of the selections and codecs are tried, for a setting that another row tries in full.
    """

    exchange: str
    collectives: int | None = 2
    rounding: float = 1e-5
    every: int = 1


def shared(support: str, values: str) -> Row:
    full = (support, values) in (("pool", "float32"), ("leader", "int8"), ("mask", "ternary"))
    rounding = 4e-2 if values == "bfloat16" else 1e-5
    exchange = f"shared(support={support}, values={values})"
    return Row(exchange, 3 if support == "pool" else 4, rounding, every=1 if full else 5)


ROWS = {
    row.exchange: row
    for row in [
        Row("allgather"),
        Row("root(rank=0)", collectives=None),
        Row("reduce_scatter(route=direct)"),
        Row("reduce_scatter(route=log)", collectives=1),
        Row("sketch", collectives=3),
        Row("sketch(rows=3, volume=0.3, decode=median, by=row)", collectives=3, every=5),
        *itertools.starmap(shared, itertools.product(SUPPORTS, SUMS)),
    ]
}
