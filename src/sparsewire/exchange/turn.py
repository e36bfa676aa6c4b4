"""What an exchange is given, and what it gives back."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse, held
from sparsewire.frames.piece import Piece, showing
from sparsewire.frames.seal import Sealed, Selection
from sparsewire.kernels import Array

from .combine import combine_into


@dataclass
class Clock:
    """Seconds by stage, and how often an exchange took one of its ways."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


@dataclass(frozen=True)
class Turn:
    """One call of an exchange: the scheme, the ranks, and where randomness comes from."""

    scheme: Scheme
    comm: Communicator
    step: int = 0
    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    label: str = ""  # of the channels, where schemes alternate

    def channel(self, pieces: Sequence[Piece]) -> str:
        """Where these pieces' messages travel: an engine's slots are as large as a channel's last messages."""
        return (pieces[0].name if pieces else "") + self.label

    def seal(self, piece: Piece) -> Sealed:
        """The frame of a piece's selection; the piece's buffers are only read."""
        return self.offer(piece)[1]

    def offer(self, piece: Piece) -> tuple[Selection, Sealed]:
        """A piece's selection and its frame."""
        selection, ctx = self.select(piece)
        with self.clock("encode"):
            return selection, piece.encode(selection, self.scheme, ctx)

    def select(self, piece: Piece) -> tuple[Selection, Context]:
        """A piece's selection alone, and what the codecs may know."""
        ctx = piece.context(self.scheme, self.step, self.seed, self.comm.rank)
        with self.clock("select"):
            return piece.select(showing(self.scheme), ctx), ctx


class Outcome(ABC):
    """What came of a piece. On each rank, compensated input = sent + what is kept; over all ranks Σ sent = size × mean,
    or what the exchange's rule of the mean says instead.

    `sent` is this rank's part in the mean, in the domain of the scheme's transform. `finite` is whether all that any
    rank sent is finite: the same answer on every rank.
    """

    sent: Sparse
    finite: bool

    @abstractmethod
    def mean_into(self, out: Array) -> None:
        """The mean, dense and with the transform undone, into a flat array of the work dtype."""

    @abstractmethod
    def mean_sparse(self) -> Sparse:
        """The mean where any rank sent something, in the domain of the scheme's transform."""

    def mean_parts(self) -> tuple[Sequence[Sparse], float]:
        """What the sum of which, times the number, is the mean: not added up where it need not be."""
        return [self.mean_sparse()], 1.0

    def arrived(self) -> Array | None:
        """Which entries of `sent` are in the mean, where some are not because a rank keeps them; None for all."""
        return None

    def delivered(self) -> Sparse:
        """The part of `sent` that is in the mean."""
        sent, arrived = self.sent, self.arrived()
        if arrived is None:
            return sent
        return sent.like(sent.indices[arrived], sent.values.reshape(-1, sent.width)[arrived].reshape(-1))


class Meant(Outcome):
    """What this rank sent, and the mean as entries in the work dtype of a tensor of `dtype`."""

    def __init__(self, sent: Sparse, mean: Sparse, finite: bool, dtype: str) -> None:
        self.sent, self.finite, self._mean, self._dtype = sent, finite, mean, dtype

    def mean_into(self, out: Array) -> None:
        if self._mean.transform is None:
            combine_into(out, [self._mean], "all")
        else:
            with np.errstate(invalid="ignore"):
                out[:] = self._mean.flat()

    def mean_sparse(self) -> Sparse:
        mean, numbers = self._mean, held(self._mean.work_values, self._dtype)
        return Sparse.trusted(mean.indices, numbers, mean.shape, self._dtype, mean.width, mean.transform)
