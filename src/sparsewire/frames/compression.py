"""`compress`: a frame, and the residual x − decode(frame), computed without decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.codecs.contract import State
from sparsewire.codecs.scheme import Scheme, Spec, scheme
from sparsewire.core import host
from sparsewire.core.sparse import Sparse, merged, work_dtype
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from .codec import piece_of
from .feedback import DenseFeedback


def compress(
    x: Any, s: Spec, *, step: int = 0, name: str = "", seed: int = 0, rank: int = 0, residual: Any = None
) -> tuple[bytes, Any]:
    """(frame, residual): what `encode` sends for x (+ residual, if one is given), and what is left.

    What is left is x − decode(frame), exactly: one subtraction where something was sent, x itself elsewhere. A residual
    that is given is updated in place (a `Sparse` is returned anew), unless what is sent is non-finite, or x is and
    nothing is sent, or an error is raised: then it stays as it was. A memory with several buffers takes and gives a
    dict of them.

    >>> import numpy as np
    >>> frame, left = compress(np.array([0.5, 3.0, -1.0]), "topk(k=1)")
    >>> left
    array([ 0.5,  0. , -1. ])
    """
    plan, tensor = scheme(s), host.to_host(x)
    if residual is None and len(plan.memory.buffers) < 2:
        return _without_residual(x, tensor, plan, (step, name, seed, rank))
    buffers = Buffers.of(residual, plan, tensor)
    piece = piece_of(tensor, name, buffers.state)
    sealed = piece.seal(plan, step, seed, rank)
    if not piece.is_nonfinite(plan, sealed.sent):
        piece.keep(plan, Alone(sealed.sent))
        buffers.write_back()
    return sealed.frame, buffers.given


def _without_residual(
    x: Any, tensor: host.Dense | Sparse, plan: Scheme, facts: tuple[int, str, int, int]
) -> tuple[bytes, Any]:
    step, name, seed, rank = facts
    sealed = piece_of(tensor, name).seal(plan, step, seed, rank)
    if isinstance(tensor, Sparse):
        return sealed.frame, _rest(tensor, sealed.sent)
    left = tensor.flat.copy()
    DenseFeedback(Alone(sealed.sent)).subtract_sent(left)
    return sealed.frame, host.like(x, left, tensor)


def _rest(x: Sparse, sent: Sparse) -> Sparse:
    """x − sent, without zeros."""
    where = x.indices if sent.indices is x.indices else merged([x.indices, sent.indices])
    with np.errstate(all="ignore"):
        rows = (x.at(where) - sent.at(where)).reshape(-1, x.width)
    nonzero = np.flatnonzero(rows.any(axis=1))
    return x.like(where[nonzero], rows[nonzero].reshape(-1))


@dataclass(frozen=True)
class Alone:
    """The outcome of an exchange between one rank and itself."""

    sent: Sparse

    def mean_sparse(self) -> Sparse:
        return self.sent

    def mean_parts(self) -> tuple[list[Sparse], float]:
        return [self.sent], 1.0

    def arrived(self) -> None:
        """All of it."""


@dataclass
class Buffers:
    """A memory's buffers as the caller gave them, and as flat arrays in the work dtype."""

    given: Any
    state: State

    @classmethod
    def of(cls, residual: Any, plan: Scheme, tensor: host.Dense | Sparse) -> Buffers:
        names = plan.memory.buffers
        if not names:
            raise InputError(f"memory={plan.memory} keeps no residual; leave residual= out, or use memory=residual")
        if len(names) == 1:
            return cls(residual, {names[0]: _flat(residual, tensor)})
        if residual is None:
            size = tensor.numel if isinstance(tensor, Sparse) else tensor.flat.size
            residual = {name: np.zeros(size, work_dtype(tensor.dtype)) for name in names}
        if not isinstance(residual, Mapping) or set(residual) != set(names):
            raise InputError(f"memory={plan.memory} has the buffers {', '.join(names)}: residual= takes a dict of them")
        return cls(residual, {name: _flat(residual[name], tensor) for name in names})

    def write_back(self) -> None:
        """Puts results that could not be written in place where the caller looks for them."""
        for name, kept in self.state.items():
            given = self.given[name] if isinstance(self.given, Mapping) else self.given
            if isinstance(kept, np.ndarray) and not host.shares_memory(given, kept):
                host.write_back(given, kept)
        if isinstance(self.given, Sparse):
            self.given = next(iter(self.state.values()))


def _flat(residual: Any, tensor: host.Dense | Sparse) -> Array | Sparse:
    if isinstance(residual, Sparse) and isinstance(tensor, Sparse):
        if (residual.shape, residual.dtype, residual.width) != (tensor.shape, tensor.dtype, tensor.width):
            raise InputError(f"{residual!r} is no residual of {tensor!r}")
        return residual
    numel = tensor.numel if isinstance(tensor, Sparse) else tensor.flat.size
    return writable_residual(residual, numel, tensor.dtype).flat


def writable_residual(residual: Any, numel: int, dtype: str) -> host.Dense:
    """A residual that can be updated in place."""
    kept = host.to_host(residual) if host.is_writable(residual) else None
    if not isinstance(kept, host.Dense) or kept.flat.size != numel or kept.flat.dtype != work_dtype(dtype):
        raise InputError(
            f"the residual must be a dense array or torch tensor that can be written, of {numel} elements and a dtype "
            f"that goes with {dtype}"
        )
    return kept
