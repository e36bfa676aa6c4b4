"""Dense-sized buffers that are reused: page faults of new ones cost more than the work done in them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .reference import Array


class Kept:
    """One buffer per dtype, as large as the largest that was asked for."""

    def __init__(self) -> None:
        self._buffers: dict[str, Array] = {}

    def __call__(self, size: int, dtype: Any) -> Array:
        """At least `size` elements, cut to size; they hold until the next call."""
        name = np.dtype(dtype).str
        if name not in self._buffers or self._buffers[name].size < size:
            self._buffers[name] = np.empty(size, dtype)
        return self._buffers[name][:size]


_local = threading.local()


def scratch(size: int, dtype: Any) -> Array:
    """This thread's buffer of at least `size` elements, cut to size; it holds until the next call."""
    if not hasattr(_local, "kept"):
        _local.kept = Kept()
    kept: Array = _local.kept(size, dtype)
    return kept
