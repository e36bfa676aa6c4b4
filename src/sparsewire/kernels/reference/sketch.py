"""One row of a count-sketch: a table of buckets of `width` numbers, into which entries are added with random signs.

An id's random bits are those of `random_bits(key, id)`: the upper 32 say its bucket, the lowest whether it is negated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .base import U64, Array
from .quantize import GOLDEN, mix64

MOST_BUCKETS = 2**32


def sketch_insert(table: Array, ids: Array, values: Array, width: int, key: int) -> None:
    """Adds each entry's `width` numbers, times its sign, to its bucket, in the order of the entries."""
    if ids.size * width != values.size:
        raise ValueError(f"{values.size} numbers are not {ids.size} entries of {width}")
    buckets, signs = _places(ids, _buckets(table, ids, width), key, table.dtype)
    with np.errstate(all="ignore"):
        np.add.at(table, _elements(buckets, width), (values.reshape(-1, width) * signs[:, None]).reshape(-1))


def sketch_query(table: Array, ids: Array, width: int, key: int) -> Array:
    """What each entry's bucket holds, times its sign: `width` numbers for each."""
    buckets, signs = _places(ids, _buckets(table, ids, width), key, table.dtype)
    return (table[_elements(buckets, width)].reshape(-1, width) * signs[:, None]).reshape(-1)


def sketch_load(ids: Array, buckets: int, key: int) -> NDArray[np.int32]:
    """How many of the entries each bucket has."""
    if not 0 <= buckets <= MOST_BUCKETS or (ids.size and not buckets):
        raise ValueError(f"{buckets} buckets for {ids.size} entries")
    return np.bincount(_places(ids, buckets, key, np.float32)[0], minlength=buckets).astype(np.int32)


def _buckets(table: Array, ids: Array, width: int) -> int:
    if width < 1 or table.size % width or table.size // width > MOST_BUCKETS or (ids.size and not table.size):
        raise ValueError(f"a table of {table.size} numbers has no buckets of {width} for {ids.size} entries")
    return int(table.size // width)


def _places(ids: Array, buckets: int, key: int, dtype: Any) -> tuple[NDArray[np.int64], Array]:
    """(each entry's bucket, its sign)."""
    random = mix64((ids.astype(U64) + U64(1)) * U64(GOLDEN) + U64(key))
    places = ((random >> U64(32)) * U64(buckets) >> U64(32)).astype(np.int64)
    return places, np.where(random & U64(1), -1, 1).astype(dtype)


def _elements(buckets: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return (buckets[:, None] * width + np.arange(width)).reshape(-1)
