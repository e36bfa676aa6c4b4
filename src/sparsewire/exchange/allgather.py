"""`allgather`: every rank gets every frame and adds them up in rank order, so all get the same bits.

1. Each rank seals its pieces; the frames of one call travel as one message, which says once what they share.
2. One all_gather moves the messages.
3. Every rank decodes the others' messages; what they decode of its own it has known since it encoded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import kernels
from ..codec import decode_parsed
from ..contract import Exchange
from ..errors import FrameError, PeerError
from ..kernels import Array
from ..kernels.scratch import scratch
from ..piece import Piece
from ..scheme import from_record
from ..sparse import Sparse, elements, work_dtype
from ..transform import Identity
from ..wire import Frame, pack_message, unpack_message
from .turn import Outcome, Turn


@dataclass(frozen=True)
class AllGather(Exchange):
    """Frames from all to all."""

    id = "allgather"
    wire_id = 1

    def exchange(self, pieces: Sequence[Piece], turn: Turn) -> list[Outcome]:
        """Moves the pieces' frames; no buffer is written."""
        comm, channel = turn.comm, pieces[0].name if pieces else ""
        try:
            sealed = [turn.seal(piece) for piece in pieces]
        except BaseException:
            self.refuse(comm, channel)
            raise
        mine = pack_message(one.fields for one in sealed)
        with turn.clock("exchange"):
            messages = comm.all_gather(mine, channel)
        with turn.clock("decode"):
            if bytes(messages[comm.rank]) != mine:  # comparing the view itself would go byte by byte
                raise PeerError(f"rank {comm.rank}: its message came back changed")
            own = [one.sent for one in sealed]
            by_rank = [
                own if rank == comm.rank else _read(message, pieces, own, rank) for rank, message in enumerate(messages)
            ]
        with turn.clock("accumulate"):
            by_piece = zip(pieces, zip(*by_rank, strict=True), strict=True)
            return [Gathered(comm.rank, parts, isinstance(piece.x, Sparse)) for piece, parts in by_piece]


class Gathered(Outcome):
    """Every rank's entries; of a dense tensor their mean alone, where that takes less memory."""

    def __init__(self, rank: int, parts: Sequence[Sparse], stay_sparse: bool) -> None:
        self.sent = parts[rank]
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
        parts = [(elements(part.indices, part.width), part.work_values) for part in self._parts]
        kernels.accumulate(out, parts, 1 / len(parts), threads=kernels.threads)

    def mean_into(self, out: Array) -> None:
        if self.sent.transform is not None:
            coefficients = self._mean
            if coefficients is None:
                coefficients = scratch(self.sent.size * self.sent.width, self._dtype)
                self._accumulate(coefficients)
            out[:] = self.sent.transform.inverse(coefficients, out.size)
        elif self._mean is not None:
            out[:] = self._mean
        else:
            self._accumulate(out)

    def mean_sparse(self) -> Sparse:
        if self._mean is not None:
            rows = self._mean.reshape(-1, self.sent.width)
            some = np.flatnonzero(rows.any(axis=1)).astype(kernels.index_dtype(self.sent.size))
            return self.sent.like(some, rows[some].reshape(-1))
        indices = np.unique(np.concatenate([part.indices for part in self._parts]))
        total = np.zeros((indices.size, self.sent.width), self._dtype)
        for part in self._parts:
            share = part.work_values * self._dtype.type(1 / len(self._parts))
            total[np.searchsorted(indices, part.indices)] += share.reshape(-1, self.sent.width)
        return self.sent.like(indices, total.reshape(-1))


def _read(message: memoryview, pieces: Sequence[Piece], own: Sequence[Sparse], rank: int) -> list[Sparse]:
    try:
        if not len(message):
            raise FrameError("it failed before it could send")
        frames = unpack_message(message, max(map(_numel, pieces), default=0))
        _check_tensors(frames, pieces)
        for frame, mine in zip(frames, own, strict=True):
            if (frame.width, from_record(frame.record).transform) != (mine.width, mine.transform or Identity()):
                raise FrameError(f"entries of {frame.width} numbers after another transform than on this rank")
        return [decode_parsed(frame) for frame in frames]
    except FrameError as error:
        raise PeerError(f"rank {rank}: {error}") from error


def _numel(piece: Piece) -> int:
    return piece.x.numel if isinstance(piece.x, Sparse) else piece.x.size


def _check_tensors(frames: Sequence[Frame], pieces: Sequence[Piece]) -> None:
    """Whether these are the tensors that are due."""
    if len(frames) != len(pieces):
        raise FrameError(f"{len(frames)} tensors where {len(pieces)} are due")
    for frame, piece in zip(frames, pieces, strict=True):
        if frame.shape != piece.shape or frame.dtype != piece.dtype:
            raise FrameError(
                f"a frame of {frame.dtype} {frame.shape} where {piece.name!r} is {piece.dtype} {piece.shape}"
            )
