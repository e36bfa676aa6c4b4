"""`allgather`: every rank gets every frame and adds them up in rank order, so all get the same bits.

1. Each rank seals its pieces; the frames of one call travel as one message.
2. One all_gather moves the messages.
3. Every rank decodes the others' messages; what they decode of its own it has known since it encoded it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..binary import Reader, varint
from ..codec import decode_parsed
from ..comm import Communicator
from ..contract import Exchange
from ..errors import FrameError, PeerError
from ..scheme import Scheme
from ..seal import Sealed
from ..sparse import Sparse
from ..wire import Frame, unpack
from .piece import Clock, Outcome, Piece


@dataclass(frozen=True)
class AllGather(Exchange):
    """Frames from all to all."""

    id = "allgather"
    wire_id = 1

    def exchange(
        self, pieces: Sequence[Piece], plan: Scheme, comm: Communicator, step: int, seed: int, clock: Clock
    ) -> list[Outcome]:
        """Moves the pieces; nothing is written yet. Every rank calls it with the same pieces in the same order."""
        channel = pieces[0].name if pieces else ""
        try:
            sealed = [piece.seal(plan, step, seed, comm.rank, clock) for piece in pieces]
        except Exception:
            # The others wait for this rank's message: an empty one tells them, so that nobody hangs.
            comm.all_gather(b"", channel)
            raise
        mine = _pack(sealed)
        with clock("exchange"):
            messages = comm.all_gather(mine, channel)
        with clock("decode"):
            if bytes(messages[comm.rank]) != mine:  # comparing the view itself would go byte by byte
                raise PeerError(f"rank {comm.rank}: its message came back changed")
            own = [piece.entries(one) for piece, one in zip(pieces, sealed, strict=True)]
            by_rank = [
                own if rank == comm.rank else _read(message, pieces, rank) for rank, message in enumerate(messages)
            ]
        return [
            Outcome(piece, one, entries)
            for piece, one, entries in zip(pieces, sealed, zip(*by_rank, strict=True), strict=True)
        ]


def _pack(sealed: Sequence[Sealed]) -> bytes:
    return b"".join(part for one in sealed for part in (varint(len(one.frame)), one.frame))


def _read(message: memoryview, pieces: Sequence[Piece], rank: int) -> list[Sparse]:
    try:
        if not len(message):
            raise FrameError("it failed before it could send")
        reader = Reader(message)
        frames = [_checked(reader.take(reader.varint()), piece) for piece in pieces]
        if reader.left:
            raise FrameError(f"{reader.left} bytes too many")
        return [decode_parsed(frame) for frame in frames]
    except FrameError as error:
        raise PeerError(f"rank {rank}: {error}") from error


def _checked(frame: memoryview, piece: Piece) -> Frame:
    """A frame with a right checksum, of the tensor that is due."""
    numel = piece.x.numel if isinstance(piece.x, Sparse) else piece.x.size
    parsed = unpack(frame, max_numel=numel)
    if parsed.shape != piece.shape or parsed.dtype != piece.dtype:
        raise FrameError(
            f"a frame of {parsed.dtype} {parsed.shape} where {piece.name!r} is {piece.dtype} {piece.shape}"
        )
    return parsed
