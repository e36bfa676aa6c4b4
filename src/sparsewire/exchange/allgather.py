"""`allgather`: every rank gets every frame and adds them up in rank order, so all get the same bits.

1. Each rank seals its pieces; the frames of one call travel as one message, which says once what they share.
2. One all_gather moves the messages.
3. Every rank decodes the others' messages; what they decode of its own it has known since it encoded it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Entries
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse, elements, work_dtype
from sparsewire.frames.piece import Piece, Selected
from sparsewire.frames.seal import Sealed
from sparsewire.frames.wire import pack_message
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense
from sparsewire.kernels.scratch import scratch

from .base import Exchange, ExchangeContext, Outcome
from .combine import RULES, combine, combine_into
from .messages import gather, read
from .rider import Rider


@dataclass(frozen=True)
class AllGather(Exchange):
    """Frames from all to all. `mean` says what the sum of an entry is divided by: see `combine`."""

    id = "allgather"
    wire_id = 1
    carries = True

    mean: str = "all"

    def check(self) -> None:
        self.expect(self.mean in RULES, f"mean is one of {', '.join(RULES)}")

    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        """Moves the offers' frames; no buffer is written."""
        pieces = [offer.piece for offer in offers]
        channel = context.channel(pieces)
        with announcing_failure(context.comm, channel):
            sealed = [context.encode(offer) for offer in offers]
        return gather_sealed(pieces, sealed, context, channel, self.mean)


@contextmanager
def announcing_failure(comm: Communicator, channel: str) -> Iterator[None]:
    """A rank that fails here sends an empty message to those that wait for its own, and then raises."""
    try:
        yield
    except BaseException:
        comm.all_gather(b"", channel)
        raise


def gather_sealed(
    pieces: Sequence[Piece], sealed: Sequence[Sealed], context: ExchangeContext, channel: str, rule: str = "all"
) -> list[Outcome]:
    """The outcomes of an all_gather of these frames."""
    comm, own, rider = context.comm, [coded.sent for coded in sealed], context.rider or Rider()
    message = pack_message(coded.fields for coded in sealed)
    with context.clock("exchange"):
        messages, riding = rider.split(gather(message + rider.pack(), comm, channel))
    with context.clock("decode"):
        by_rank = [
            own if rank == comm.rank else read(message, pieces, own, rank) for rank, message in enumerate(messages)
        ]
        rider.average(riding)
    with context.clock("accumulate"):
        return outcomes(pieces, by_rank, comm.rank, rule)


def outcomes(pieces: Sequence[Piece], by_rank: Sequence[Sequence[Sparse]], rank: int, rule: str) -> list[Outcome]:
    """The outcome of each piece, from every rank's part of it."""
    by_piece = zip(pieces, zip(*by_rank, strict=True), strict=True)
    return [Gathered(rank, parts, isinstance(piece.x, Sparse), rule) for piece, parts in by_piece]


class Gathered(Outcome):
    """Every rank's entries; of a dense tensor their mean alone, where that takes less memory."""

    def __init__(self, rank: int, parts: Sequence[Sparse], stay_sparse: bool, rule: str = "all") -> None:
        self.sent, self._rule = parts[rank], rule
        self.on_device = self.sent.transform is None or self.sent.transform.on_device
        self.finite = all(kernels.all_finite(part.work_values) for part in parts)
        self._parts: Sequence[Sparse] = parts
        self._mean: Array | None = None
        if not stay_sparse and sum(part.indices.nbytes + part.values.nbytes for part in parts) > self._dense_bytes:
            self._mean = np.empty(self.sent.size * self.sent.width, self._dtype)
            self._accumulate(self._mean)
            self._parts = ()

    @property
    def _dtype(self) -> np.dtype[np.floating]:
        return work_dtype(self.sent.dtype)

    @property
    def _dense_bytes(self) -> int:
        return self.sent.size * self.sent.width * self._dtype.itemsize

    def _accumulate(self, out: Array) -> None:
        combine_into(out, self._parts, self._rule)

    def mean_into(self, out: Array) -> None:
        if self.sent.transform is not None:
            out[:] = self.sent.transform.inverse(self._coefficients(out), out.size)
        elif self._mean is not None:
            out[:] = self._mean
        else:
            self._accumulate(out)

    def _coefficients(self, like: Dense) -> Dense:
        """The mean's, where an array lies."""
        size = self.sent.size * self.sent.width
        if not kernels.on_host(like):
            coefficients = like.zeros_beside(size)
            if self._mean is not None:
                coefficients[:] = self._mean
        elif self._mean is not None:
            return self._mean
        else:
            coefficients = scratch(size, self._dtype)
        if self._mean is None:
            self._accumulate(coefficients)
        return coefficients

    def mean_sparse(self) -> Sparse:
        if self._mean is not None:
            rows = self._mean.reshape(-1, self.sent.width)
            indices = np.flatnonzero(rows.any(axis=1)).astype(kernels.index_dtype(self.sent.size))
            return self.sent.like(indices, rows[indices].reshape(-1))
        return self.sent.like(*combine(self._parts, self._rule))

    def mean_entries(self) -> Entries | None:
        if self.sent.transform is not None:
            return None
        if self._mean is not None:
            return kernels.threshold(self._mean, 1, threads=kernels.threads)
        indices, values = combine(self._parts, self._rule)
        return elements(indices, self.sent.width), values

    def mean_parts(self) -> tuple[Sequence[Sparse], float]:
        if self._mean is not None or self._rule != "all":
            return super().mean_parts()
        return self._parts, 1 / len(self._parts)
