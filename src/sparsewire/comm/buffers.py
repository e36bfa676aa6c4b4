"""The arrays that collectives move, and the ways in which they are combined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sparsewire.core.sparse import from_bfloat16, to_bfloat16

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
BFloat16Bits: TypeAlias = npt.NDArray[np.uint16]
BytesLike: TypeAlias = "bytes | bytearray | memoryview | Array"
Combine: TypeAlias = Callable[[Array, Array], Array]

OPS: dict[str, Combine] = {"sum": np.add, "max": np.maximum, "bor": np.bitwise_or}
# What gloo, NCCL and MPI all add up; a wider list would work on one engine and fail on the next.
DTYPES = frozenset(np.dtype(name) for name in ("float32", "float64", "int8", "int32", "int64", "uint8"))


def as_bytes(data: BytesLike) -> Bytes:
    """The payload as a flat uint8 array, without a copy where its memory is contiguous."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return np.frombuffer(view if view.c_contiguous else view.tobytes(), np.uint8)


def add_bfloat16(a: BFloat16Bits, b: BFloat16Bits) -> BFloat16Bits:
    """The sum of two arrays of bfloat16 numbers, rounded to bfloat16, for engines that do not know the dtype."""
    with np.errstate(all="ignore"):
        return to_bfloat16(from_bfloat16(a) + from_bfloat16(b))
