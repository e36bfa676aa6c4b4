"""`mean`: one tensor, averaged over the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsewire.codecs.scheme import Spec, scheme
from sparsewire.comm import Communicator
from sparsewire.core import host
from sparsewire.core.sparse import Sparse
from sparsewire.errors import InputError
from sparsewire.frames.codec import piece_of
from sparsewire.frames.compression import Buffers

from .allgather import AllGather
from .base import Exchange, ExchangeContext


def mean(
    x: Any, s: Spec, comm: Communicator, *, step: int = 0, name: str = "", seed: int = 0, residual: Any = None
) -> tuple[Any, Any]:
    """(mean over the ranks of what they sent, what this rank sent), both like x.

    Every rank calls it with the same scheme, step, name and seed. A residual that is given takes part and is updated
    in place, unless any rank's part is non-finite: all ranks then see that in the mean, and all residuals stay. Of a
    memory with several buffers, `residual` is the dict.

    >>> from sparsewire.comm import run_ranks
    >>> run_ranks(2, lambda comm: mean(np.array([1.0, 0.0, comm.rank]), "nonzero", comm)[0].tolist())
    [[1.0, 0.0, 0.5], [1.0, 0.0, 0.5]]
    """
    exchange: Exchange = AllGather()
    try:
        plan = scheme(s)
        exchange = ExchangeContext(plan, comm).method
        tensor = host.to_host(x)
        if isinstance(residual, Sparse):
            raise InputError("mean updates its residual in place: give a dense array, also for a sparse tensor")
        buffers = None if residual is None else Buffers.of(residual, plan, tensor)
    except BaseException:
        exchange.refuse(comm, name)  # the others are waiting in the exchange
        raise
    piece = piece_of(tensor, name, None if buffers is None else buffers.state)
    (outcome,) = ExchangeContext(plan, comm, step, seed).average([piece])
    if buffers is not None and outcome.finite:
        piece.keep(plan, outcome)
        buffers.write_back()
    if isinstance(tensor, Sparse):
        return outcome.mean_sparse(), outcome.sent
    average = np.empty_like(tensor.flat)
    outcome.mean_into(average)
    return host.like(x, average, tensor), host.like(x, outcome.sent.flat(), tensor)
