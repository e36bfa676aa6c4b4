"""The memories' buffers of a training, by parameter name.

Engines regroup their buckets, so nothing is keyed by bucket. Where a segment spans several parameters, their buffers
lie side by side in one array, and each name has a view of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import State
from sparsewire.core.sparse import DTYPES, Sparse, work_dtype
from sparsewire.errors import InputError
from sparsewire.kernels import Array, all_finite
from sparsewire.kernels.device import landed

from ..layout import Segment, Slice
from ..places import assign, is_used, same_memory, zeros_like
from .step_mean import LEAST_RATE, StepMean

BLOCK = 2**20
LEAST_CHANGE = 0.01  # of a rate, for what waits to follow it: a pass over all buffers


@dataclass(frozen=True)
class TableFormat:
    """How a tensor with sparse gradients is saved: its rows of `width` numbers that are not zero."""

    shape: tuple[int, ...]
    dtype: str
    width: int


class States:
    """One flat array per parameter and buffer, zero at first."""

    def __init__(self) -> None:
        self.by_name: dict[str, dict[str, Array]] = {}
        self.rows: dict[str, TableFormat] = {}
        self.means: dict[str, StepMean] = {}  # of the step before, the same on every rank
        self.rates: dict[str, float] = {}  # the learning rate that what waits of a parameter is meant for
        self._joined: dict[tuple[Segment, str], Array] = {}
        self._held_back: list[tuple[Array, Array]] = []

    def of(self, segment: Segment, buffers: Iterable[str], like: Array) -> State:
        """The segment's buffers, in the memory and the work dtype of its gradient. What is written there is kept."""
        return {buffer: self._buffer(segment, buffer, like) for buffer in buffers}

    def of_sparse(self, name: str, x: Sparse, buffers: Iterable[str]) -> State:
        """Buffers for a tensor with sparse gradients. Pages that no gradient has touched take no memory."""
        self.rows[name] = TableFormat(x.shape, x.dtype, x.width)
        mine = self.by_name.setdefault(name, {})
        for buffer in buffers:
            if mine.get(buffer, np.empty(0)).size != x.numel:
                mine[buffer] = np.zeros(x.numel, work_dtype(x.dtype))
        return {buffer: mine[buffer] for buffer in buffers}

    def _buffer(self, segment: Segment, buffer: str, like: Array) -> Array:
        joined = self._joined.get((segment, buffer))
        if joined is None or not same_memory(joined, like) or not self._current(segment, buffer, joined):
            joined = self._joined[segment, buffer] = self._join(segment, buffer, like)
        return joined

    def _current(self, segment: Segment, buffer: str, joined: Array) -> bool:
        """Whether the names' views still point into this array (another segment may have taken them over)."""
        views = [self.by_name.get(item.name, {}).get(buffer) for item in segment.members]
        return all(view is not None and view.base is joined for view in views)

    def _join(self, segment: Segment, buffer: str, like: Array) -> Array:
        joined = zeros_like(like, segment.stop - segment.start)
        for item in segment.members:
            view = joined[item.start - segment.start : item.stop - segment.start]
            mine = self.by_name.setdefault(item.name, {})
            if buffer in mine:
                _check_size(item.name, mine[buffer].size, view.size)
                assign(view, mine[buffer])
            mine[buffer] = view
        self._joined = {key: array for key, array in self._joined.items() if self._current(*key, array)}
        return joined

    def hold_back(self, segment: Segment, item: Slice, state: State) -> None:
        """Takes the buffers of one of the segment's parameters away, until `put_back`.

        Perhaps no rank used the parameter: its mean is then dropped, and what was sent of its buffers would be lost.
        """
        for kept in state.values():
            part = kept[item.start - segment.start : item.stop - segment.start]
            self._held_back.append((part, part.copy()))
            part[:] = 0

    def put_back(self) -> None:
        """What was set held is added to what has come in its place."""
        for kept, held in self._held_back:
            kept += held
        self._held_back = []

    def multiply(self, factor: float) -> None:
        """All buffers, in place; zeros are left alone, so that pages which were never touched stay so."""
        self.means = {name: mean.scaled(factor) for name, mean in self.means.items()}
        for buffers in self.by_name.values():
            for kept in buffers.values():
                if not kernels.on_host(kept):
                    kept *= factor
                    continue
                for part in _blocks(kept):
                    np.multiply(part, part.dtype.type(factor), out=part, where=part != 0)

    def follow_rate(self, name: str, rate: float, lead: float) -> None:
        """What waits is a movement of the weights: at another learning rate it has another size as a gradient.

        `lead` times the velocity lies in the residual too, but is of the next step, and stays.
        """
        known = self.rates.get(name, rate)
        if rate < LEAST_RATE:
            return
        if abs(known / rate - 1) > LEAST_CHANGE:
            _rescale_residual(self.by_name.get(name, {}), known / rate, lead)
            known = rate
        self.rates[name] = known

    def mean_before(self, name: str) -> StepMean | None:
        """The step before's mean of a parameter that has buffers."""
        return self.means.get(name) if name in self.by_name else None

    def unsent(self) -> list[str]:
        """Parameters with something left in a buffer."""
        return [name for name, buffers in self.by_name.items() if any(map(is_used, buffers.values()))]

    def clear(self, name: str) -> None:
        """Nothing of a parameter waits any more."""
        for kept in self.by_name[name].values():
            kept[:] = 0

    def drop(self, name: str) -> None:
        """Forgets what there is of a parameter."""
        self.by_name.pop(name, None)
        self.means.pop(name, None)

    # --- saving ---

    def saved(self) -> dict[str, dict[str, Any]]:
        """Copies: flat arrays, or rows for tensors with sparse gradients."""
        return {
            name: {buffer: self._saved(name, kept) for buffer, kept in buffers.items()}
            for name, buffers in self.by_name.items()
        }

    def _saved(self, name: str, kept: Array) -> Any:
        rows = self.rows.get(name)
        if rows is None:
            return kept.copy() if kernels.on_host(kept) else kernels.to_host(kept)
        table = kept.reshape(-1, rows.width)
        nonzero = np.flatnonzero(table.any(axis=1))
        values = table[nonzero].reshape(-1)
        shape, dtype = list(rows.shape), rows.dtype
        return {"indices": nonzero, "values": values, "shape": shape, "dtype": dtype, "width": rows.width}

    def saved_means(self) -> dict[str, dict[str, Any]]:
        entries = landed([mean.entries for mean in self.means.values()])
        return {
            name: {"indices": indices, "values": values, "rate": mean.rate}
            for (name, mean), (indices, values) in zip(self.means.items(), entries, strict=True)
        }

    @classmethod
    def read(
        cls, saved: Mapping[str, Mapping[str, Any]], means: Mapping[str, Mapping[str, Any]], rates: Mapping[str, float]
    ) -> States:
        """What `saved` and `saved_means` gave, and the rates, checked."""
        states = cls()
        for name, buffers in saved.items():
            arrays = {buffer: _read(name, kept) for buffer, kept in buffers.items()}
            states.by_name[name] = {buffer: array for buffer, (array, _) in arrays.items()}
            for rows in (rows for _, rows in arrays.values() if rows is not None):
                states.rows[name] = rows
        sizes = {name: {array.size for array in buffers.values()} for name, buffers in states.by_name.items()}
        states.means = {name: _read_mean(name, kept, sizes.get(name, set())) for name, kept in means.items()}
        states.rates = {str(name): _read_rate(rate) for name, rate in rates.items()}
        return states

    def take_over(self, other: States) -> None:
        """Goes on from other states."""
        self.by_name, self.rows, self.means, self.rates = other.by_name, other.rows, other.means, other.rates
        self._joined, self._held_back = {}, []

    def is_finite(self) -> bool:
        """Asked of states that were read, which lie on the host."""
        arrays = [kept for buffers in self.by_name.values() for kept in buffers.values()]
        return all(map(all_finite, (*arrays, *(mean.values for mean in self.means.values()))))


def _blocks(array: Array) -> Iterator[Array]:
    return (array[start : start + BLOCK] for start in range(0, array.size, BLOCK))


def _rescale_residual(buffers: Mapping[str, Array], factor: float, lead: float) -> None:
    """Multiplies what waits, in place."""
    residual, velocity = buffers.get("residual"), buffers.get("velocity")
    if residual is None:
        return
    if not kernels.on_host(residual):
        residual *= factor
        if velocity is not None:
            moved = velocity.copy()
            moved *= (1 - factor) * lead
            residual += moved
        return
    for part, moving in zip(_blocks(residual), _blocks(residual if velocity is None else velocity), strict=True):
        kind = part.dtype.type
        np.multiply(part, kind(factor), out=part, where=part != 0)
        if velocity is not None:
            part += kind((1 - factor) * lead) * moving


def _read(name: str, kept: Any) -> tuple[Array, TableFormat | None]:
    if not isinstance(kept, Mapping):
        return _numbers(name, kept).copy(), None
    rows = TableFormat(tuple(kept["shape"]), kept["dtype"], int(kept["width"]))
    values = _numbers(name, kept["values"])
    if rows.dtype not in DTYPES:
        raise InputError(f"the state has rows of {rows.dtype!r} for {name!r}, not of one of {', '.join(DTYPES)}")
    sparse = Sparse(kept["indices"], values, rows.shape, values.dtype.name, rows.width)
    full = np.zeros(sparse.numel, work_dtype(rows.dtype))
    full.reshape(-1, rows.width)[sparse.indices] = sparse.work_values.reshape(-1, rows.width)
    return full, rows


def _read_mean(name: str, kept: Mapping[str, Any], sizes: set[int]) -> StepMean:
    """A mean's indices lie within the parameter's buffers, where there are any."""
    values, rate = _numbers(name, kept["values"]).copy(), kept.get("rate")
    if len(sizes) > 1:
        raise InputError(f"the state has buffers of different sizes for {name!r}")
    indices = np.array(kept["indices"])
    if indices.dtype not in (np.int32, np.int64):
        raise InputError(f"the state has indices of {indices.dtype} for {name!r}")
    Sparse(indices, values, (next(iter(sizes), 2**62),))
    return StepMean(indices, values, None if rate is None else _read_rate(rate))


def _read_rate(rate: Any) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise InputError(f"the state has a learning rate of {rate!r}")
    return float(rate)


def _numbers(name: str, array: Any) -> Array:
    if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64):
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"the state has {kind} for {name!r}, not an array of float32 or float64")
    flat = np.ascontiguousarray(array).reshape(-1)
    if not all_finite(flat):
        raise InputError(f"the state has non-finite numbers for {name!r}")
    return flat


def _check_size(name: str, saved: int, wanted: int) -> None:
    if saved != wanted:
        raise InputError(f"the state has {saved} numbers for {name!r}, its gradient {wanted}")
