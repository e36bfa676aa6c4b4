"""An exchange from outside: every rank's part, made dense, summed by an ordinary all_reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire.core.sparse import Sparse, elements
from sparsewire.errors import PeerError
from sparsewire.exchange import Exchange, ExchangeContext, Outcome, Selected


@dataclass(frozen=True)
class SumOfAll(Exchange):
    """The engine adds up; the bytes on the wire are those of dense vectors."""

    id = "sum_of_all"

    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        channel = offers[0].piece.name
        try:
            parts = [context.encode(offer).sent for offer in offers]
        except BaseException:
            self.refuse(context.comm, channel)
            raise
        if not all(len(told) for told in context.comm.all_gather(b"here", channel)):
            raise PeerError("a rank failed before it could send")
        return [Summed(part, context) for part in parts]


class Summed(Outcome):
    def __init__(self, sent: Sparse, context: ExchangeContext) -> None:
        self.sent = sent
        coefficients = np.zeros(sent.size * sent.width, sent.work_values.dtype)
        coefficients[elements(sent.indices, sent.width)] = sent.work_values
        with np.errstate(all="ignore"):
            self._mean = context.comm.all_reduce(coefficients) / coefficients.dtype.type(context.comm.size)
        self.finite = bool(np.isfinite(self._mean).all())

    def mean_into(self, out: np.ndarray) -> None:
        out[:] = self.mean_sparse().flat()

    def mean_sparse(self) -> Sparse:
        rows = self._mean.reshape(-1, self.sent.width)
        some = np.flatnonzero(rows.any(axis=1))
        return self.sent.like(some, rows[some].reshape(-1))
