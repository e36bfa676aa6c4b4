"""The slices of a rank's tensors as messages, round by round: their blocks, or a notice why the rank failed.

An error is held until all ranks have received its notice: every rank makes the same calls, so nobody waits, and all
raise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from zlib import crc32

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Entries
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse, element_entries, work_dtype
from sparsewire.errors import PeerError
from sparsewire.frames.piece import Piece, Selected
from sparsewire.frames.wire import pack_message
from sparsewire.kernels import Array

from ..base import Clock, Outcome
from ..messages import FINITE, NONFINITE, check_notice, notice, read
from .blocks import Block, cut_up, whole


class Slices(NamedTuple):
    """A tensor that this rank offers, cut into one block for each rank."""

    offer: Selected
    blocks: list[Block]


class Shares:
    """The slices of all tensors of one call on this rank. Slice j of each is rank j's."""

    def __init__(self, comm: Communicator, channel: str, clock: Clock) -> None:
        self.comm, self.channel, self.clock = comm, channel, clock
        self.error: BaseException | None = None
        self._tensors: list[Slices] = []
        self._digest = b""
        self._finite = True

    def cut(self, offers: Sequence[Selected]) -> None:
        """Takes what this rank offers of each tensor."""
        with self._held():
            for offer in offers:
                blocks = cut_up(offer.selection, offer.ctx.numel, self.comm.size, offer.piece.dtype)
                self._tensors.append(Slices(offer, blocks))
            kinds = [(offer.piece.shape, offer.piece.dtype, offer.selection.width) for offer in offers]
            self._digest = crc32(repr(kinds).encode()).to_bytes(4, "little")

    def message(self, slices: Sequence[int]) -> bytes:
        """These slices of all tensors, to be passed on; every slice goes once."""
        if self.error is None:
            with self._held(), self.clock("encode"):
                frames = [block.seal(offer.scheme, offer.ctx).fields for offer, block in self._blocks(slices)]
                self._finite &= all(kernels.all_finite(block.sent.values) for _, block in self._blocks(slices))
                return b"".join([FINITE if self._finite else NONFINITE, self._digest, pack_message(frames)])
        assert self.error is not None
        return notice(self.error, self.comm.rank)

    def take(self, message: bytes | memoryview, slices: Sequence[int], peer: int, given: Sequence[int]) -> None:
        """These slices as a peer passed them on, with as many ranks' parts as the slices `given` to another had."""
        if self.error is None:
            with self._held(), self.clock("decode"):
                parts = self._read(message, slices, peer)
                ranks = [block.ranks for _, block in self._blocks(given)]
                for (_, block), part, count in zip(self._blocks(slices), parts, ranks, strict=True):
                    block.add(part, count)

    def gather_own(self) -> tuple[bytes, list[memoryview]]:
        """Sends this rank's own slice to all: (its message, every rank's)."""
        message = self.message([self.comm.rank])
        with self.clock("exchange"):
            return message, self.comm.all_gather(message, self.channel)

    def gather(self) -> list[Outcome]:
        """The means of all slices."""
        own, messages = self.gather_own()
        if self.error is not None:
            raise self.error
        with self.clock("decode"):
            if bytes(messages[self.comm.rank]) != own:
                raise PeerError(f"rank {self.comm.rank}: its message came back changed")
            by_rank = [self._mean_of(message, rank) for rank, message in enumerate(messages)]
        finite = all(message[:1] == FINITE for message in messages)
        finite &= all(kernels.all_finite(part.work_values) for parts in by_rank for part in parts)
        by_tensor = zip(self._tensors, zip(*by_rank, strict=True), strict=True)
        return [_outcome(slices, list(parts), finite) for slices, parts in by_tensor]

    def _mean_of(self, message: memoryview, rank: int) -> list[Sparse]:
        if rank == self.comm.rank:
            return [block.passed for _, block in self._blocks([rank])]
        return self._read(message, [rank], rank)

    def _read(self, message: bytes | memoryview, slices: Sequence[int], peer: int) -> list[Sparse]:
        check_notice(message)
        start = 1 + len(self._digest)
        if len(message) and message[1:start] != self._digest:
            raise PeerError(f"rank {peer}: its tensors have other shapes or dtypes than on rank {self.comm.rank}")
        kinds = [(offer.piece.name, block.kind) for offer, block in self._blocks(slices)]
        pieces = [Piece(name, kind, kind.shape, kind.dtype) for name, kind in kinds]
        return read(memoryview(message)[start:], pieces, [kind for _, kind in kinds], peer)

    def _blocks(self, slices: Sequence[int]) -> list[tuple[Selected, Block]]:
        return [(tensor.offer, tensor.blocks[at]) for tensor in self._tensors for at in slices]

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Holds the first error, until the other ranks have its notice."""
        try:
            yield
        except BaseException as error:
            self.error = self.error or error


def _outcome(slices: Slices, means: list[Sparse], finite: bool) -> Outcome:
    starts, offer = [block.start for block in slices.blocks], slices.offer
    selection, size, dtype = offer.selection, offer.ctx.numel, offer.piece.dtype
    sent = [block.sent for block in slices.blocks]
    return Scattered(
        whole(selection, size, starts, sent, work_dtype(dtype).name),
        whole(selection, size, starts, means, dtype),
        finite,
    )


class Scattered(Outcome):
    """This rank's part, and the mean as the owners of its slices coded it."""

    def __init__(self, sent: Sparse, mean: Sparse, finite: bool) -> None:
        self.sent, self.finite, self._mean = sent, finite, mean
        self.on_device = mean.transform is None or mean.transform.on_device

    def arrived(self) -> Array:
        return np.isin(self.sent.indices, self._mean.indices, assume_unique=True)

    def mean_into(self, out: Array) -> None:
        with np.errstate(invalid="ignore"):
            if self._mean.transform is None:
                out[:] = 0
                places, numbers = element_entries(self._mean)
                out[places] = numbers
            else:
                out[:] = self._mean.flat_beside(out)

    def mean_entries(self) -> Entries | None:
        return None if self._mean.transform is not None else element_entries(self._mean)

    def mean_sparse(self) -> Sparse:
        return self._mean
