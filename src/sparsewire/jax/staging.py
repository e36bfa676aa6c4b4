"""Gradients side by side in one buffer for each dtype, so that what travels dense is one message.

The means take their places. On the CPU JAX's arrays may lie in NumPy's memory: a buffer is used again only when nobody
holds it any longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparsewire.core.sparse import work_dtype
from sparsewire.kernels import Array
from sparsewire.kernels.scratch import recycled
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.settings import dtype_name

from .trees import numpy_view


class Staging:
    """Copies of gradients, whose places the means take."""

    def __init__(self) -> None:
        self._filled: list[tuple[Buffer, Array]] = []

    def fill(self, leaves: Mapping[str, Any]) -> list[Buffer]:
        """Buffers for the averager."""
        views: dict[str, dict[str, np.ndarray[Any, Any]]] = defaultdict(dict)
        for name, leaf in leaves.items():
            view = numpy_view(name, leaf)
            views[dtype_name(view)][name] = view.reshape(-1)
        self._filled = [self._side_by_side(dtype, parts) for dtype, parts in views.items()]
        return [buffer for buffer, _ in self._filled]

    def _side_by_side(self, dtype: str, parts: Mapping[str, Array]) -> tuple[Buffer, Array]:
        flat = recycled(sum(part.size for part in parts.values()), work_dtype(dtype))
        slices, start = [], 0
        for name, part in parts.items():
            slices.append(Slice(name, start, start + part.size))
            flat[start : start + part.size] = part
            start += part.size
        return Buffer(tuple(slices), dtype, lambda: flat), flat

    def flats(self) -> dict[str, tuple[Array, str]]:
        """The numbers by name, with the dtype that they are to be stored in."""
        return {
            item.name: (flat[item.start : item.stop], buffer.dtype)
            for buffer, flat in self._filled
            for item in buffer.slices
        }
