"""The exchange's base class, its context (`ExchangeContext`) and its result (`Outcome`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from sparsewire.codecs.contract import Context, Entries, ExchangeCodec, Select
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse, element_entries, held
from sparsewire.errors import SchemeError
from sparsewire.frames.piece import Piece, Selected, land, showing
from sparsewire.frames.seal import Sealed, Selection
from sparsewire.kernels import Array

from .combine import combine_into
from .rider import Rider


@dataclass
class Clock:
    """Seconds by stage, and how often an exchange used one of its methods; `watch` is told of each stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    watch: Callable[[str, float, float], None] | None = None

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self.seconds[stage] = self.seconds.get(stage, 0.0) + end - start
            if self.watch is not None:
                self.watch(stage, start, end)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


@dataclass(frozen=True)
class ExchangeContext:
    """One call of an exchange: the scheme, the ranks, and where randomness comes from."""

    scheme: Scheme
    comm: Communicator
    step: int = 0
    seed: int = 0
    clock: Clock = field(default_factory=Clock)
    label: str = ""  # of the channels, where schemes alternate
    rider: Rider | None = None  # what travels with the messages, if the exchange carries any

    @property
    def method(self) -> Exchange:
        method = self.scheme.exchange
        if not isinstance(method, Exchange):
            raise SchemeError(f"exchange={method} cannot move anything: its class is no sparsewire.exchange.Exchange")
        return method

    def channel(self, pieces: Sequence[Piece]) -> str:
        """Where these pieces' messages travel: an engine's slots are as large as a channel's last messages."""
        return (pieces[0].name if pieces else "") + self.label

    def average(self, pieces: Sequence[Piece]) -> list[Outcome]:
        """Selects and exchanges; no buffer is written."""
        return self.method.exchange(self.select(pieces), self)

    def select(self, pieces: Sequence[Piece]) -> list[Selected]:
        """What this rank offers of each piece. A rank that cannot select tells the others before it raises."""
        try:
            selects = self.method.selects(pieces, self)
            return self._selected_by(selects, pieces)
        except BaseException:
            self.method.refuse(self.comm, self.channel(pieces))
            raise

    def select_by(self, select: Select, piece: Piece) -> Selected:
        """The piece, selected by a selection other than the scheme's own."""
        return self._selected_by([select], [piece])[0]

    def _selected_by(self, selects: Sequence[Select], pieces: Sequence[Piece]) -> list[Selected]:
        """What lies on a device comes from there at once, for all pieces."""
        with self.clock("select"):
            plans = [showing(replace(self.scheme, select=select)) for select in selects]
            begun = [
                piece.begin_select(plan, self._codec_context(piece)) for plan, piece in zip(plans, pieces, strict=True)
            ]
            return [self.selected(piece, offer) for piece, offer in zip(pieces, land(begun), strict=True)]

    def selected(self, piece: Piece, selection: Selection) -> Selected:
        """A piece whose selection has been made."""
        return Selected(piece, selection, piece.scheme_for(self.scheme), self._codec_context(piece))

    def encode(self, offer: Selected) -> Sealed:
        """The frame of what this rank offers."""
        with self.clock("encode"):
            return offer.encode()

    def _codec_context(self, piece: Piece) -> Context:
        return piece.context(self.scheme, self.step, self.seed, self.comm.rank)


class Exchange(ExchangeCodec):
    """How the ranks come to the mean: the base class of every exchange, built in or from outside."""

    carries = False  # whether `exchange` moves a context's rider

    def selects(self, pieces: Sequence[Piece], context: ExchangeContext) -> Sequence[Select]:
        """The selection of each piece on this rank in this step: the scheme's own, unless another rank leads.

        Of a sparse tensor, which is sent as it is, all entries are selected whatever this says.
        """
        return [context.scheme.select] * len(pieces)

    @abstractmethod
    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        """The outcome of each offer. No buffer is written. Every rank calls it with the same pieces in one order.

        A rank that cannot take part tells the others before it raises.
        """

    def refuse(self, comm: Communicator, channel: str) -> None:
        """Tells ranks that are in `exchange` that this one cannot take part."""
        comm.all_gather(b"", channel)


class Outcome(ABC):
    """The result of exchanging a piece. On each rank, compensated input = sent + what is kept; over all ranks
    Σ sent = size × mean, or what the exchange's rule of the mean says instead.

    `sent` is this rank's part in the mean, in the domain of the scheme's transform. `finite` is whether all that any
    rank sent is finite: the same answer on every rank.
    """

    sent: Sparse
    finite: bool
    on_device: bool = False  # whether `mean_into` takes a `DeviceArray` as well

    @abstractmethod
    def mean_into(self, out: Array) -> None:
        """The mean, dense and with the transform undone, into a flat array of the work dtype."""

    @abstractmethod
    def mean_sparse(self) -> Sparse:
        """The mean where any rank sent something, in the domain of the scheme's transform."""

    def mean_entries(self) -> Entries | None:
        """The elements of the mean and their numbers, as `mean_into` writes them; None where these are not known, or a
        transform spreads them over all."""
        return None

    def mean_parts(self) -> tuple[Sequence[Sparse], float]:
        """(parts, factor): the mean is the factor times the sum of the parts, which need not be added up yet."""
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


class SparseMean(Outcome):
    """What this rank sent, and the mean as entries in the work dtype of a tensor of `dtype`."""

    def __init__(self, sent: Sparse, mean: Sparse, finite: bool, dtype: str) -> None:
        self.sent, self.finite, self._mean, self._dtype = sent, finite, mean, dtype
        self.on_device = mean.transform is None or mean.transform.on_device

    def mean_into(self, out: Array) -> None:
        if self._mean.transform is None:
            combine_into(out, [self._mean], "all")
        else:
            with np.errstate(invalid="ignore"):
                out[:] = self._mean.flat_beside(out)

    def mean_entries(self) -> Entries | None:
        return None if self._mean.transform is not None else element_entries(self._mean)

    def mean_sparse(self) -> Sparse:
        mean, numbers = self._mean, held(self._mean.work_values, self._dtype)
        return Sparse.trusted(mean.indices, numbers, mean.shape, self._dtype, mean.width, mean.transform)
