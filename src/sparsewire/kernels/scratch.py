"""Dense-sized buffers that a thread reuses: page faults of new ones cost more than the work done in them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from .reference import Array

_kept = threading.local()


def scratch(size: int, dtype: Any) -> Array:
    """The first `size` elements of this thread's buffer; valid until its next call."""
    buffers: dict[str, Array] = _kept.__dict__.setdefault("buffers", {})
    name = np.dtype(dtype).str
    if name not in buffers or buffers[name].size < size:
        buffers[name] = np.empty(size, dtype)
    return buffers[name][:size]
