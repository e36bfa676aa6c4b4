"""Dense-sized buffers that are reused: page faults of new ones cost more than the work done in them."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from typing import Any

import numpy as np

from .reference import Array

LEAST = 2**20  # bytes that are worth being kept


class BufferPool:
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
_free: list[Array] = []  # the memory of arrays of `recycled` that nobody has any more
KEPT = 2  # of them


def recycled(size: int, dtype: Any) -> Array:
    """An array as `np.empty` gives it, perhaps in memory that an earlier one had until nobody held it any longer."""
    memory = _taken(size * np.dtype(dtype).itemsize)
    made: Array = np.frombuffer(memory.data, dtype, size)  # views of it keep it, and it alone keeps the memory
    weakref.finalize(made, _give_back, memory).atexit = False
    return made


def _taken(needed: int) -> Array:
    """Memory that waits for use and fits, or new. Lists are popped and appended to, which threads can do at once."""
    for _ in range(len(_free)):
        memory = _free.pop(0) if _free else np.empty(0, np.uint8)
        if needed <= memory.size <= 2 * needed:
            return memory
        _give_back(memory)
    return np.empty(max(needed, 1), np.uint8)


def _give_back(memory: Array) -> None:
    if memory.size >= LEAST:
        _free.append(memory)
        del _free[:-KEPT]


def scratch(size: int, dtype: Any, use: str = "") -> Array:
    """This thread's buffer of at least `size` elements, cut to size; it holds until the next call for the same use."""
    if not hasattr(_local, "kept"):
        _local.kept = defaultdict(BufferPool)
    kept: Array = _local.kept[use](size, dtype)
    return kept
