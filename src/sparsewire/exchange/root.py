"""`root`: every rank sends its frames to one of them, which adds up and sends the mean, coded once, to all.

For where there is a server, or to count what comes down: with `allgather` every rank gets every frame.

1. Each rank seals its pieces and sends them to the root.
2. The root adds up in rank order and codes the mean without loss: the support by the scheme's own index codec, or by
   `best` where that one is lossy; the numbers as a table of distinct ones or deflated, whichever is smaller.
3. One broadcast. Every rank decodes the same bytes, the root too, so all have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.indices import Best
from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.values.chain import Chain
from sparsewire.codecs.values.deflate import Deflate
from sparsewire.codecs.values.distinct import Distinct
from sparsewire.codecs.values.raw import RawValues
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse, work_dtype
from sparsewire.errors import FrameError, InputError, PeerError
from sparsewire.frames.piece import Piece, Selected
from sparsewire.frames.seal import Selection, seal
from sparsewire.frames.wire import Frame, pack_message
from sparsewire.kernels import Array

from .base import Exchange, ExchangeContext, Outcome, SparseMean
from .combine import RULES, combine
from .messages import FINITE, NEVER_SENT, NONFINITE, check_notice, notice, read, read_frames

VALUES = (Chain((Distinct(),)), Chain((RawValues(), Deflate())))
TAG = 41


@dataclass(frozen=True)
class Root(Exchange):
    """Frames to the rank `rank`, and the mean from there. `mean` as in `allgather`."""

    id = "root"
    wire_id = 10

    rank: int = 0
    mean: str = "all"

    def check(self) -> None:
        self.expect(self.rank >= 0, "rank is 0 or more")
        self.expect(self.mean in RULES, f"mean is one of {', '.join(RULES)}")

    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        """Moves the offers' frames; no buffer is written."""
        comm, pieces = context.comm, [offer.piece for offer in offers]
        if self.rank >= comm.size:
            raise InputError(f"exchange={self}: there are only {comm.size} ranks")
        try:
            sealed = [context.encode(offer) for offer in offers]
        except BaseException:
            self.refuse(comm, "")
            raise
        own = [coded.sent for coded in sealed]
        with context.clock("exchange"):
            answer = self._answer(pack_message(coded.fields for coded in sealed), pieces, own, context)
        with context.clock("decode"):
            check_notice(answer)
            body = memoryview(answer)[1:]
            means = read_frames(body, pieces, own, self.rank, lambda piece: work_dtype(piece.dtype).name)
        finite = answer[:1] == FINITE
        return [SparseMean(sent, mean, finite, sent.dtype) for sent, mean in zip(own, means, strict=True)]

    def refuse(self, comm: Communicator, channel: str) -> None:
        if comm.rank != self.rank:
            comm.send(b"", self.rank, TAG)
            comm.broadcast(None, self.rank)
        else:
            self._gather(comm, b"")
            comm.broadcast(notice(FrameError(NEVER_SENT), comm.rank), self.rank)

    def _answer(
        self, message: bytes, pieces: Sequence[Piece], own: Sequence[Sparse], context: ExchangeContext
    ) -> bytes:
        comm = context.comm
        if comm.rank != self.rank:
            comm.send(message, self.rank, TAG)
            return comm.broadcast(None, self.rank)
        try:
            messages = self._gather(comm, message)
            by_rank = [
                list(own) if rank == comm.rank else read(memoryview(received), pieces, own, rank)
                for rank, received in enumerate(messages)
            ]
            answer = self._mean(by_rank, context.scheme)
        except PeerError as error:
            answer = notice(error, comm.rank)
        return comm.broadcast(answer, self.rank)

    def _gather(self, comm: Communicator, message: bytes) -> list[bytes]:
        return [message if rank == comm.rank else comm.recv(rank, TAG) for rank in range(comm.size)]

    def _mean(self, by_rank: Sequence[Sequence[Sparse]], scheme: Scheme) -> bytes:
        finite = all(kernels.all_finite(part.work_values) for parts in by_rank for part in parts)
        frames = [code(parts, self.mean, scheme) for parts in zip(*by_rank, strict=True)]
        return (FINITE if finite else NONFINITE) + pack_message(frames)


def code(parts: Sequence[Sparse], rule: str, scheme: Scheme) -> Frame:
    """The frame of the mean of the ranks' parts of one tensor, coded without loss."""
    first = parts[0]
    indices, numbers = combine(parts, rule)
    kind = work_dtype(first.dtype).name
    indices = indices.astype(kernels.index_dtype(first.size), copy=False)
    plan = replace(scheme, indices=scheme.indices if scheme.indices.lossless else Best())
    plan = plan if first.transform is not None else plan.untransformed
    ctx = Context(kind, first.size)
    offer = Selection(indices, numbers, _nothing_else, first.shape, first.width, first.transform)
    sealed = [seal(replace(plan, values=values), ctx, offer) for values in VALUES]
    return min(sealed, key=lambda coded: len(coded.frame)).fields


def _nothing_else(where: Array) -> Array:
    raise AssertionError("an index codec without loss sends the entries that it is given")
