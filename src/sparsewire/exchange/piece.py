"""One tensor's way through an exchange, in two phases: first everything that may fail, then everything that writes.

Between the two, all ranks know whether any of them sent something that is not finite. If so, no residual is touched:
the training step will be skipped everywhere, and nothing may be lost by that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from .. import kernels
from ..kernels import Array
from ..leftover import keep, unsent
from ..scheme import Scheme
from ..seal import Sealed, at_sparse, context, seal
from ..sparse import Sparse, store


@dataclass
class Clock:
    """Seconds by stage."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Piece:
    """A tensor to be averaged, flat in its work dtype or a `Sparse`, and what was not sent before if that is kept."""

    name: str
    x: Array | Sparse
    shape: tuple[int, ...]
    dtype: str
    residual: Array | Sparse | None = None

    def seal(self, plan: Scheme, step: int, seed: int, rank: int, clock: Clock) -> Sealed:
        """Selects from x + residual, which both stay as they are, and encodes."""
        x, residual = self.x, self.residual
        if isinstance(x, Sparse):
            return self._seal_sparse(plan, x, step, seed, rank, clock)
        assert not isinstance(residual, Sparse)
        ctx = context(self.dtype, x.size, step, self.name, seed, rank)
        with clock("select"):
            picked = plan.select.pick(x, ctx) if residual is None else plan.select.pick_sum(residual, x, ctx)
        with clock("encode"):
            return seal(plan, ctx, self.shape, *picked, lambda at: x[at] if residual is None else x[at] + residual[at])

    def entries(self, sealed: Sealed) -> Sparse:
        """What the receivers decode from this piece's frame."""
        kept = sealed.sent if self.dtype == "bfloat16" else store(sealed.sent, self.dtype)
        return Sparse.trusted(sealed.indices, kept, self.shape, self.dtype)

    def _seal_sparse(self, plan: Scheme, x: Sparse, step: int, seed: int, rank: int, clock: Clock) -> Sealed:
        """A `Sparse` is sent as it is; of the residual, what lies at its entries."""
        ctx = context(self.dtype, x.numel, step, self.name, seed, rank)
        with clock("encode"):
            values = self.compensated(x)
            return seal(plan, ctx, x.shape, x.indices, values, at_sparse(Sparse(x.indices, values, x.shape, x.dtype)))

    def compensated(self, x: Sparse) -> Array:
        """The values of a sparse x with the residual's part."""
        residual = self.residual
        return x.work_values + at_sparse(residual)(x.indices) if isinstance(residual, Sparse) else x.work_values


@dataclass(frozen=True)
class Outcome:
    """What came of a piece: what this rank sent, and every rank's entries in rank order."""

    piece: Piece
    sealed: Sealed
    received: Sequence[Sparse]

    @property
    def finite(self) -> bool:
        """Whether all that any rank sent is finite: the same answer on every rank."""
        return all(kernels.all_finite(entries.work_values) for entries in self.received)

    def keep(self) -> Sparse | None:
        """Puts what was not sent into the residual, in place; a sparse residual is returned anew."""
        x, residual = self.piece.x, self.piece.residual
        if isinstance(x, Sparse):
            return self._keep_sparse(x, residual if isinstance(residual, Sparse) else None)
        if isinstance(residual, np.ndarray):
            np.add(residual, x, out=residual)
            keep(residual, self.sealed)
        return None

    def _keep_sparse(self, x: Sparse, residual: Sparse | None) -> Sparse:
        total = Sparse(x.indices, self.piece.compensated(x), x.shape, x.dtype)
        rest = Sparse(*unsent(total, self.sealed), x.shape, x.dtype)
        indices = rest.indices if residual is None else np.union1d(residual.indices, rest.indices)
        values = at_sparse(rest)(indices)
        if residual is not None:
            untouched = ~np.isin(indices, x.indices)
            values[untouched] += at_sparse(residual)(indices[untouched])
        some = np.flatnonzero(values)
        return Sparse(indices[some], values[some], x.shape, x.dtype)

    def mean_into(self, out: Array) -> None:
        """The mean, dense, into a flat array of the work dtype (which may be x itself)."""
        parts = [(entries.indices, entries.work_values) for entries in self.received]
        kernels.accumulate(out, parts, 1 / len(parts), threads=kernels.threads)

    def mean_sparse(self) -> Sparse:
        """The mean at the union of all ranks' entries."""
        indices = np.unique(np.concatenate([entries.indices for entries in self.received]))
        total = np.zeros(indices.size, self.received[0].work_values.dtype)
        for entries in self.received:
            place = np.searchsorted(indices, entries.indices)
            total[place] += entries.work_values * total.dtype.type(1 / len(self.received))
        return Sparse(indices, total, self.piece.shape, self.piece.dtype)
