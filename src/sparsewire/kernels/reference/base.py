"""Types and helpers of all kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
U64 = np.uint64


def index_dtype(numel: int) -> np.dtype[np.signedinteger]:
    return np.dtype(np.int32 if numel <= 2**31 else np.int64)


def spread(per_block: Array, block: int, count: int) -> Array:
    """Each block's number for each of its entries, `count` in all."""
    return np.repeat(per_block, min(block, max(count, 1)))[:count]
