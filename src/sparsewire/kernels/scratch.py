"""Dense-sized buffers that are reused: page faults of new ones cost more than the work done in them."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from .reference import Array


LITTLE = 2**20  # bytes that need not be saved


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
_free: list[Array] = []  # the memory of the last array of `recycled` that nobody has any more


def recycled(size: int, dtype: Any) -> Array:
    """An array as `np.empty` gives it, perhaps in memory that an earlier one had until nobody held it any longer."""
    needed = size * np.dtype(dtype).itemsize
    try:
        memory = _free.pop()
    except IndexError:
        memory = np.empty(needed, np.uint8)
    if not needed <= memory.size <= 2 * needed + LITTLE:
        memory = np.empty(needed, np.uint8)
    made: Array = np.frombuffer(memory.data, dtype, size)  # views of it keep it, and it alone keeps the memory
    weakref.finalize(made, _give_back, memory).atexit = False
    return made


def _give_back(memory: Array) -> None:
    _free[:] = [memory]


def scratch(size: int, dtype: Any) -> Array:
    """This thread's buffer of at least `size` elements, cut to size; it holds until the next call."""
    if not hasattr(_local, "kept"):
        _local.kept = Kept()
    kept: Array = _local.kept(size, dtype)
    return kept
