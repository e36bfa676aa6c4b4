"""An exchange from outside: every rank's part, made dense, summed by an ordinary all_reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire.codecs.contract import Exchange
from sparsewire.core.sparse import Sparse, elements
from sparsewire.errors import PeerError
from sparsewire.exchange import Outcome, Piece, Turn


@dataclass(frozen=True)
class SumOfAll(Exchange):
    """The engine adds up; the bytes on the wire are those of dense vectors."""

    id = "sum_of_all"

    def exchange(self, pieces: Sequence[Piece], turn: Turn) -> list[Outcome]:
        channel = pieces[0].name
        try:
            parts = [turn.seal(piece).sent for piece in pieces]
        except BaseException:
            self.refuse(turn.comm, channel)
            raise
        if not all(len(told) for told in turn.comm.all_gather(b"here", channel)):
            raise PeerError("a rank failed before it could send")
        return [Summed(part, turn) for part in parts]


class Summed(Outcome):
    def __init__(self, sent: Sparse, turn: Turn) -> None:
        self.sent = sent
        coefficients = np.zeros(sent.size * sent.width, sent.work_values.dtype)
        coefficients[elements(sent.indices, sent.width)] = sent.work_values
        with np.errstate(all="ignore"):
            self._mean = turn.comm.all_reduce(coefficients) / coefficients.dtype.type(turn.comm.size)
        self.finite = bool(np.isfinite(self._mean).all())

    def mean_into(self, out: np.ndarray) -> None:
        out[:] = self.mean_sparse().flat()

    def mean_sparse(self) -> Sparse:
        rows = self._mean.reshape(-1, self.sent.width)
        some = np.flatnonzero(rows.any(axis=1))
        return self.sent.like(some, rows[some].reshape(-1))
