"""The exchanges that `test_exchange_laws.py` holds to the laws: one row each, or one per setting that matters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`rounding`: of a sum, relative to the largest number in it; more than float32's where the engine adds coarsely.

    `collectives`: the most that one call needs, however many tensors it carries; None if that grows with the ranks.
    """

    exchange: str
    collectives: int | None = 2
    rounding: float = 1e-5


ROWS = {
    row.exchange: row
    for row in [
        Row("allgather"),
        Row("root(rank=0)", collectives=None),
        Row("reduce_scatter(route=direct)"),
        Row("reduce_scatter(route=log)", collectives=1),
    ]
}
