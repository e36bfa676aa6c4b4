"""One tensor on its way to the mean: memory → transform → selection → frame, and what the memory keeps afterwards.

Everything up to the frame only reads, so a step that fails, or is not finite on some rank, leaves all buffers as they
were; `keep` writes, once the step is known to be finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context, Energy, Entries, State
from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.select import NotFinite
from sparsewire.core.mask import Mask
from sparsewire.core.rng import derive_key
from sparsewire.core.sparse import Sparse, elements, entries, merged
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from .seal import Sealed, Selection, seal


@dataclass(frozen=True)
class Piece:
    """A tensor to be averaged, flat in its work dtype or a `Sparse`, and its memory's buffers, if that has any."""

    name: str
    x: Array | Sparse
    shape: tuple[int, ...]
    dtype: str
    state: State = field(default_factory=dict)
    chosen: tuple[Array, Array] | None = None  # (indices, values), where the selection has been made already
    mask: Mask | None = None  # which elements a pruned model has left

    def select(self, scheme: Scheme, ctx: Context) -> Selection:
        """What is offered to the other ranks."""
        if isinstance(self.x, Sparse):
            return self._select_sparse(self.x, scheme)
        if scheme.transform.is_identity:
            return self._select_elements(self.x, scheme, ctx)
        return self._select_coefficients(self.x, scheme, ctx)

    def seal(self, scheme: Scheme, step: int, seed: int, rank: int) -> Sealed:
        """The frame of a selection."""
        ctx = self.context(scheme, step, seed, rank)
        return self.encode(self.select(scheme, ctx), scheme, ctx)

    def encode(self, selection: Selection, scheme: Scheme, ctx: Context) -> Sealed:
        return seal(self.scheme_for(scheme), ctx, selection)

    def scheme_for(self, scheme: Scheme) -> Scheme:
        """A sparse tensor is in its own domain already: no transform is applied to it."""
        if not isinstance(self.x, Sparse):
            return scheme
        if self.x.transform not in (None, scheme.transform.fitted(self.shape)):
            raise InputError(f"{self.x!r} holds coefficients of {self.x.transform}, the scheme has {scheme.transform}")
        return scheme if self.x.transform is not None else scheme.untransformed

    def context(self, scheme: Scheme, step: int, seed: int, rank: int) -> Context:
        """What the codecs may know of the tensor."""
        size = self.x.size if isinstance(self.x, Sparse) else scheme.transform.fitted(self.shape).size(self.x.size)
        key = derive_key(seed, step, self.name)
        return Context(self.dtype, size, key=key, own_key=derive_key(key, rank))

    # --- selection ---

    def _select_elements(self, x: Array, scheme: Scheme, ctx: Context) -> Selection:
        memory, state = scheme.memory, self._state(scheme)
        if state is None:
            return Selection(*(self.chosen or scheme.select.choose(x, ctx)), x.__getitem__, self.shape)
        picked = self.chosen or memory.pick(scheme.select, state, x, ctx)
        return Selection(*picked, lambda at: memory.total(_gathered(state, at, 1), x[at]).copy(), self.shape)

    def _select_coefficients(self, x: Array, scheme: Scheme, ctx: Context) -> Selection:
        state, transform = self._state(scheme), scheme.transform.fitted(self.shape)
        total = x if state is None else scheme.memory.total(state, x)
        coefficients, norms = transform.forward_norms(total)
        indices, _ = scheme.select.choose(norms, ctx)
        rows = entries(coefficients, transform.width)
        if state is not None and np.may_share_memory(rows, total):
            rows = rows.copy()  # the total lies in scratch memory

        def at(where: Array) -> Array:
            return rows[where].view(coefficients.dtype).reshape(-1)

        return Selection(indices, at(indices), at, self.shape, transform.width, transform)

    def _select_sparse(self, x: Sparse, scheme: Scheme) -> Selection:
        """A `Sparse` is sent as it is; the memory takes part at its entries, the rest of it waits."""
        state, memory = self._state(scheme), scheme.memory
        if state is not None and x.transform is not None:
            raise InputError(f"{x!r} holds coefficients: a residual, which is in the gradient's domain, does not fit")

        def at(where: Array) -> Array:
            if state is None:
                return x.at(where)
            return memory.total(_gathered(state, where, x.width), x.at(where)).copy()

        values = x.work_values if state is None else at(x.indices)
        return Selection(x.indices, values, at, x.shape, x.width, x.transform)

    def _state(self, scheme: Scheme) -> State | None:
        return self.state if scheme.memory.buffers and self.state else None

    # --- what is kept ---

    def spoils(self, scheme: Scheme, sent: Sparse) -> bool:
        """Whether the memory has to stay as it is: what was sent, or was left here by taking nothing, is not finite."""
        if scheme.select.takes_nothing and not isinstance(self.x, Sparse):
            return bool(self.select(showing(scheme), self.context(scheme, 0, 0, 0)).indices.size)
        return not kernels.all_finite(sent.work_values)

    def keep(self, scheme: Scheme, outcome: Any, gain: float = 1.0) -> Energy | None:
        """Lets the memory update its buffers; `outcome` is the exchange's, of a step that is finite on all ranks.

        With a `gain`, the optimizer is handed that multiple of the mean.
        """
        state = self._state(scheme)
        if state is None:
            return None
        if not isinstance(self.x, Sparse):
            return scheme.memory.keep(state, self.x, Told(outcome, gain))
        self._keep_sparse(self.x, state, scheme, outcome)
        return None

    def _keep_sparse(self, x: Sparse, state: State, scheme: Scheme, outcome: Any) -> None:
        """The buffers' parts at the entries of x, and at those that a lossy index codec sent besides."""
        sent: Sparse = outcome.sent
        where = x.indices if sent.indices is x.indices else merged([x.indices, sent.indices])
        before, part = _gathered(state, where, x.width), _gathered(state, where, x.width)
        scheme.memory.keep(part, x.at(where), _Gathered(outcome, where=where))
        for name, values in part.items():
            if not np.array_equal(values, before[name]):  # pages of a large table that are never written stay unused
                state[name] = _scattered(state[name], where, values, x)


def showing(scheme: Scheme) -> Scheme:
    """The scheme with a selection that shows others what is not finite, also where it takes nothing."""
    return replace(scheme, select=NotFinite()) if scheme.select.takes_nothing else scheme


@dataclass(frozen=True)
class _Feedback:
    """What a memory is told of an exchange's outcome."""

    outcome: Any
    gain: float = 1.0

    @property
    def sent(self) -> Sparse:
        return self.outcome.sent

    def arrived(self) -> Array | None:
        entries = self.outcome.arrived()
        return entries if entries is None else np.repeat(entries, self.sent.width)


class Told(_Feedback):
    """Feedback about a dense tensor."""

    @property
    def sent_entries(self) -> Entries | None:
        if self.sent.transform is not None:
            return None
        return elements(self.sent.indices, self.sent.width), self.sent.work_values

    def take_sent(self, array: Array) -> None:
        entries = self.sent_entries
        if entries is not None:
            kernels.scatter_add(array, *entries, -1.0)
        else:
            array -= self.sent.flat()

    def add_mean(self, array: Array, factor: float) -> None:
        mean = self.outcome.mean_sparse()
        if mean.transform is None:
            kernels.scatter_add(array, elements(mean.indices, mean.width), mean.work_values, factor)
        else:
            array += mean.flat() * array.dtype.type(factor)

    def mean_entries(self) -> tuple[Sequence[Entries], float] | None:
        if self.sent.transform is not None:
            return None
        parts, factor = self.outcome.mean_parts()
        return [(elements(part.indices, part.width), part.work_values) for part in parts], factor


@dataclass(frozen=True)
class _Gathered(_Feedback):
    """Feedback about the entries `where` of a sparse tensor."""

    where: Array = field(kw_only=True)

    @property
    def sent_entries(self) -> Entries | None:
        return elements(np.searchsorted(self.where, self.sent.indices), self.sent.width), self.sent.work_values

    def take_sent(self, array: Array) -> None:
        with np.errstate(all="ignore"):
            array -= self.sent.at(self.where)

    def add_mean(self, array: Array, factor: float) -> None:
        array += self.outcome.mean_sparse().at(self.where) * array.dtype.type(factor)

    def mean_entries(self) -> tuple[Sequence[Entries], float]:
        mean = self.outcome.mean_sparse().at(self.where)
        return [(np.arange(mean.size), mean)], 1.0


def _gathered(state: State, where: Array, width: int) -> State:
    """The buffers' parts at some entries."""
    return {
        name: kept.at(where) if isinstance(kept, Sparse) else kept.reshape(-1, width)[where].reshape(-1)
        for name, kept in state.items()
    }


def _scattered(kept: Array | Sparse, where: Array, values: Array, like: Sparse) -> Array | Sparse:
    """A buffer with some entries replaced: in place, or anew if it is a `Sparse`."""
    if isinstance(kept, Sparse):
        others = ~np.isin(kept.indices, where)
        indices = np.concatenate([kept.indices[others], where])
        rows = np.concatenate([kept.at(kept.indices[others]), values]).reshape(-1, like.width)
        some = np.flatnonzero(rows.any(axis=1))
        order = some[np.argsort(indices[some])]
        return like.like(indices[order], rows[order].reshape(-1))
    kept.reshape(-1, like.width)[where] = values.reshape(-1, like.width)
    return kept
