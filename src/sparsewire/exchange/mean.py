"""`mean`: one tensor, averaged over the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import host
from ..comm import Communicator
from ..errors import InputError
from ..leftover import writable_residual
from ..scheme import Spec, scheme
from ..sparse import Sparse
from .piece import Clock, Piece


def mean(
    x: Any, s: Spec, comm: Communicator, *, step: int = 0, name: str = "", seed: int = 0, residual: Any = None
) -> tuple[Any, Any]:
    """(mean over the ranks of what they sent, what this rank sent), both like x.

    Every rank calls it with the same scheme, step, name and seed. A residual that is given takes part and is updated
    in place, unless any rank's part is not finite: all ranks then see that in the mean, and all residuals stay.

    >>> from sparsewire.comm import run_ranks
    >>> run_ranks(2, lambda comm: mean(np.array([1.0, 0.0, comm.rank]), "nonzero", comm)[0].tolist())
    [[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]]
    """
    plan, tensor = scheme(s), host.to_host(x)
    if isinstance(tensor, Sparse):
        if residual is not None:
            raise InputError("a sparse tensor takes no residual here; use compress, or a dense tensor")
        return _mean_sparse(tensor, plan, comm, step, name, seed)
    kept = None if residual is None else writable_residual(residual, tensor.flat.size, tensor.dtype)
    piece = Piece(name, tensor.flat, tensor.shape, tensor.dtype, None if kept is None else kept.flat)
    (outcome,) = plan.exchange.exchange([piece], plan, comm, step, seed, Clock())
    if kept is not None and outcome.finite:
        outcome.keep()
        if not host.shares_memory(residual, kept.flat):
            host.write_back(residual, kept.flat)
    average = np.empty_like(tensor.flat)
    outcome.mean_into(average)
    sent = np.zeros_like(tensor.flat)
    sent[outcome.sealed.indices] = outcome.sealed.sent
    return host.like(x, average, tensor), host.like(x, sent, tensor)


def _mean_sparse(x: Sparse, plan: Any, comm: Communicator, step: int, name: str, seed: int) -> tuple[Sparse, Sparse]:
    (outcome,) = plan.exchange.exchange([Piece(name, x, x.shape, x.dtype)], plan, comm, step, seed, Clock())
    return outcome.mean_sparse(), Sparse(outcome.sealed.indices, outcome.sealed.sent, x.shape, x.dtype)
