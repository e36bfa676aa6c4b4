"""The frames of one call as one message, and what a receiver makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..binary import Reader, varint
from ..codec import decode_parsed
from ..errors import FrameError, PeerError
from ..piece import Piece
from ..scheme import from_record
from ..sparse import Sparse
from ..transform import Identity
from ..wire import Frame, unpack


def pack(frames: Sequence[bytes]) -> bytes:
    return b"".join(part for frame in frames for part in (varint(len(frame)), frame))


def read(message: memoryview, pieces: Sequence[Piece], own: Sequence[Sparse], rank: int) -> list[Sparse]:
    """What another rank sent of the same pieces; anything else is a `PeerError` that names it."""
    return read_frames(message, pieces, own, rank, lambda piece: piece.dtype)


def read_frames(
    message: memoryview, pieces: Sequence[Piece], own: Sequence[Sparse], rank: int, dtype: Callable[[Piece], str]
) -> list[Sparse]:
    try:
        if not len(message):
            raise FrameError("it failed before it could send")
        reader = Reader(message)
        frames = [_checked(reader.take(reader.varint()), piece, dtype(piece)) for piece in pieces]
        if reader.left:
            raise FrameError(f"{reader.left} bytes too many")
        for frame, mine in zip(frames, own, strict=True):
            if (frame.width, from_record(frame.record).transform) != (mine.width, mine.transform or Identity()):
                raise FrameError(f"entries of {frame.width} numbers after another transform than on this rank")
        return [decode_parsed(frame) for frame in frames]
    except FrameError as error:
        raise PeerError(f"rank {rank}: {error}") from error


def _checked(frame: memoryview, piece: Piece, dtype: str) -> Frame:
    """A frame with a right checksum, of the tensor that is due."""
    numel = piece.x.numel if isinstance(piece.x, Sparse) else piece.x.size
    parsed = unpack(frame, max_numel=numel)
    if parsed.shape != piece.shape or parsed.dtype != dtype:
        raise FrameError(f"a frame of {parsed.dtype} {parsed.shape} where {piece.name!r} is {dtype} {piece.shape}")
    return parsed
