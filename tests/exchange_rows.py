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
        *(
            Row(f"shared(support={support}, values={values})", collectives, rounding)
            for support, collectives in (("pool", 3), ("leader", 4), ("mask", 4))
            for values, rounding in (("float32", 1e-5), ("bfloat16", 4e-2), ("int8", 1e-5), ("ternary", 1e-5))
        ),
    ]
}
