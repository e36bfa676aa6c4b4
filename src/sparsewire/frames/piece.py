"""`Piece`, one tensor of an exchange: memory → transform → selection → frame, and what the memory keeps afterwards.

Everything up to the frame only reads, so a step that fails, or is not finite on some rank, leaves all buffers as they
were; `keep` writes, once the step is known to be finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context, State, Transform
from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.select import NotFinite
from sparsewire.core.mask import Mask
from sparsewire.core.rng import derive_key
from sparsewire.core.sparse import Sparse, elements, entries, merged
from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense, Energies, landed

from .feedback import Delivery, DenseFeedback, SparseFeedback
from .seal import Sealed, Selection, seal


@dataclass(frozen=True)
class Piece:
    """A tensor to be averaged, flat in its work dtype or a `Sparse`, and its memory's buffers, if that has any."""

    name: str
    x: Array | Sparse
    shape: tuple[int, ...]
    dtype: str
    state: State = field(default_factory=dict)
    mask: Mask | None = None  # which elements a pruned model has left

    def select(self, scheme: Scheme, ctx: Context) -> Selection:
        """What is offered to the other ranks."""
        return land([self.begin_select(scheme, ctx)])[0]

    def begin_select(self, scheme: Scheme, ctx: Context) -> Selection:
        """The same; of a tensor on a device its entries are there until `land` brings them to the host."""
        if isinstance(self.x, Sparse):
            return self._select_sparse(self.x, scheme)
        if scheme.transform.is_identity:
            return self._select_elements(self.x, scheme, ctx)
        return self._select_coefficients(self.x, scheme, ctx)

    def seal(self, scheme: Scheme, step: int, seed: int, rank: int) -> Sealed:
        """The frame of a selection."""
        ctx = self.context(scheme, step, seed, rank)
        return Selected(self, self.select(scheme, ctx), self.scheme_for(scheme), ctx).encode()

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
            return self.offered(scheme, scheme.select.choose(x, ctx))
        return self.offered(scheme, memory.pick(scheme.select, state, x, ctx))

    def offered(self, scheme: Scheme, entries: tuple[Array, Array]) -> Selection:
        """The selection of these elements: ascending indices, and the compensated gradient there."""
        x, memory, state = self.x, scheme.memory, self._state(scheme)
        assert not isinstance(x, Sparse)
        if state is None:
            return Selection(*entries, x.__getitem__, self.shape)
        return Selection(*entries, lambda at: memory.total_at(state, x, at), self.shape)

    def _select_coefficients(self, x: Array, scheme: Scheme, ctx: Context) -> Selection:
        state, transform = self._state(scheme), scheme.transform.fitted(self.shape)
        total = x if state is None else scheme.memory.total(state, x)
        if not kernels.on_host(total):
            if transform.on_device and scheme.select.on_device:
                return self._select_there(total, transform, scheme, ctx)
            total = kernels.to_host(total)
        coefficients, norms = transform.forward_norms(total)
        indices, _ = scheme.select.choose(norms, ctx)
        rows = entries(coefficients, transform.width)
        if state is not None and np.may_share_memory(rows, total):
            rows = rows.copy()  # the total lies in scratch memory

        def at(where: Array) -> Array:
            return rows[where].view(coefficients.dtype).reshape(-1)

        return Selection(indices, at(indices), at, self.shape, transform.width, transform)

    def _select_there(self, total: Dense, transform: Transform, scheme: Scheme, ctx: Context) -> Selection:
        """Coefficients of a device's gradient, of which only those that are selected will cross."""
        coefficients: Dense
        coefficients, norms = transform.forward_norms(total)
        indices, _ = scheme.select.choose(norms, ctx)

        def at(where: Array) -> Array:
            numbers: Array = coefficients[elements(where, transform.width)]
            return numbers

        if isinstance(indices, np.ndarray):  # it has been landed already
            values = at(indices)
        elif hasattr(indices, "gathered"):
            indices = values = indices.gathered(lambda places: coefficients.entries(places, transform.width))
        else:
            values = coefficients.entries(indices, transform.width)
        return Selection(indices, values, at, self.shape, transform.width, transform)

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

    def is_nonfinite(self, scheme: Scheme, sent: Sparse) -> bool:
        """Whether the memory has to stay as it is: what was sent, or was left here by taking nothing, is not finite."""
        if scheme.select.takes_nothing and not isinstance(self.x, Sparse):
            return bool(self.select(showing(scheme), self.context(scheme, 0, 0, 0)).indices.size)
        return not kernels.all_finite(sent.work_values)

    def keep(self, scheme: Scheme, delivery: Delivery, gain: float = 1.0) -> Energies | None:
        """Lets the memory update its buffers, after a step that is finite on all ranks.

        With a `gain`, the optimizer is handed that multiple of the mean.
        """
        state = self._state(scheme)
        if state is None:
            return None
        if not isinstance(self.x, Sparse):
            return scheme.memory.keep(state, self.x, DenseFeedback(delivery, gain))
        self._keep_sparse(self.x, state, scheme, delivery)
        return None

    def _keep_sparse(self, x: Sparse, state: State, scheme: Scheme, delivery: Delivery) -> None:
        """The buffers' parts at the entries of x, and at those that a lossy index codec sent besides."""
        sent = delivery.sent.indices
        where = x.indices if sent is x.indices else merged([x.indices, sent])
        before, part = _gathered(state, where, x.width), _gathered(state, where, x.width)
        scheme.memory.keep(part, x.at(where), SparseFeedback(delivery, where=where))
        for name, values in part.items():
            if not np.array_equal(values, before[name]):  # pages of a large table that are never written stay unused
                state[name] = _scattered(state[name], where, values, x)


@dataclass(frozen=True)
class Selected:
    """A piece and what this rank offers of it: what an exchange is given. `scheme` and `ctx` are the piece's own.

    `selection.at` gathers the compensated gradient at other entries, for exchanges whose ranks share their support.
    """

    piece: Piece
    selection: Selection
    scheme: Scheme
    ctx: Context

    def encode(self) -> Sealed:
        return seal(self.scheme, self.ctx, self.selection)


def land(selections: Sequence[Selection]) -> list[Selection]:
    """Selections whose entries are on the host. Those that lie on a device cross together, and are waited for once."""
    entries = landed([(offer.indices, offer.values) for offer in selections])
    pairs = zip(selections, entries, strict=True)
    return [replace(offer, indices=indices, values=values) for offer, (indices, values) in pairs]


def showing(scheme: Scheme) -> Scheme:
    """The scheme with a selection that shows others what is not finite, also where it takes nothing."""
    return replace(scheme, select=NotFinite()) if scheme.select.takes_nothing else scheme


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
        nonzero = np.flatnonzero(rows.any(axis=1))
        order = nonzero[np.argsort(indices[nonzero])]
        return like.like(indices[order], rows[order].reshape(-1))
    kept.reshape(-1, like.width)[where] = values.reshape(-1, like.width)
    return kept
