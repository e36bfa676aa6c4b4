"""What was not sent, by parameter name.

DDP rebuilds its buckets after the first step, so nothing is keyed by bucket. Where a segment spans several parameters,
their residuals lie side by side in one array, and each name has a view of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..kernels import Array
from ..sparse import Sparse
from .layout import Segment


class Residuals:
    """One flat array per parameter; `Sparse` for parameters with sparse gradients."""

    def __init__(self) -> None:
        self.dense: dict[str, Array] = {}
        self.sparse: dict[str, Sparse] = {}
        self._joined: dict[Segment, Array] = {}

    def of(self, segment: Segment, dtype: np.dtype[np.floating]) -> Array:
        """The segment's residual, zero where there was none yet. In place: what is written there is kept."""
        joined = self._joined.get(segment)
        if joined is None or joined.dtype != dtype or not self._current(segment, joined):
            joined = self._joined[segment] = self._join(segment, dtype)
        return joined

    def _current(self, segment: Segment, joined: Array) -> bool:
        """Whether the names' views still point into this array (another segment may have taken them over)."""
        return all(self.dense[item.name].base is joined for item in segment.members)

    def _join(self, segment: Segment, dtype: np.dtype[np.floating]) -> Array:
        joined = np.zeros(segment.stop - segment.start, dtype)
        for item in segment.members:
            view = joined[item.start - segment.start : item.stop - segment.start]
            if item.name in self.dense:
                view[:] = self.dense[item.name]
            self.dense[item.name] = view
        self._joined = {kept: array for kept, array in self._joined.items() if self._current(kept, array)}
        return joined

    def multiply(self, factor: float) -> None:
        """All of them, in place."""
        for kept in self.dense.values():
            kept *= kept.dtype.type(factor)
        self.sparse = {
            name: Sparse(kept.indices, kept.work_values * factor, kept.shape, kept.dtype)
            for name, kept in self.sparse.items()
        }

    def replace(self, dense: Mapping[str, Array], sparse: Mapping[str, Sparse]) -> None:
        """Takes over a saved state."""
        self.dense = {name: np.array(array).reshape(-1) for name, array in dense.items()}
        self.sparse = dict(sparse)
        self._joined = {}


def sparse_state(kept: Sparse) -> dict[str, Any]:
    """A `Sparse` in tensors and plain types."""
    indices = torch.from_numpy(kept.indices.astype(np.int64))
    return {"indices": indices, "values": torch.tensor(kept.values), "shape": list(kept.shape), "dtype": kept.dtype}


def sparse_from(state: Mapping[str, Any]) -> Sparse:
    return Sparse(state["indices"].numpy(), state["values"].numpy(), tuple(state["shape"]), state["dtype"])
