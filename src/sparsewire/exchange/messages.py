"""Messages between ranks: the frames of one call, checked and decoded, or a notice of a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sparsewire.codecs.scheme import from_record
from sparsewire.codecs.transform import Identity
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse
from sparsewire.errors import FrameError, PeerError
from sparsewire.frames.codec import decode_parsed, decode_support
from sparsewire.frames.piece import Piece
from sparsewire.frames.seal import Selection
from sparsewire.frames.wire import Frame, unpack_message
from sparsewire.kernels import Array

Entries = Sparse | Selection  # which have this rank's width and transform
NEVER_SENT = "it failed before it could send"
FAILED, FINITE, NONFINITE = b"\0", b"\1", b"\2"  # how a message begins that may be a notice


def notice(error: BaseException, rank: int) -> bytes:
    """Why this rank has nothing to send, for those that wait for it."""
    text = str(error) if isinstance(error, PeerError) else f"rank {rank}: {error or type(error).__name__}"
    return FAILED + text.encode()[:1000]


def check_notice(message: bytes | memoryview) -> None:
    if message[:1] == FAILED:
        raise PeerError(bytes(message[1:]).decode(errors="replace"))


def read(message: memoryview, pieces: Sequence[Piece], own: Sequence[Entries], rank: int) -> list[Sparse]:
    """What another rank sent of the same pieces; anything else is a `PeerError` that names it."""
    return read_frames(message, pieces, own, rank, own_dtype)


def read_supports(message: memoryview, pieces: Sequence[Piece], own: Sequence[Entries], rank: int) -> list[Array]:
    """The same where frames name entries only."""
    with blaming(rank):
        frames = parse(message, pieces, own, own_dtype)
        if any(len(frame.values) for frame in frames):
            raise FrameError("values where only a support is due")
        return [decode_support(frame) for frame in frames]


def read_frames(
    message: memoryview, pieces: Sequence[Piece], own: Sequence[Entries], rank: int, dtype: Callable[[Piece], str]
) -> list[Sparse]:
    with blaming(rank):
        return [decode_parsed(frame) for frame in parse(message, pieces, own, dtype)]


def parse(
    message: memoryview, pieces: Sequence[Piece], own: Sequence[Entries], dtype: Callable[[Piece], str]
) -> list[Frame]:
    """A message's frames, if they are of the tensors that are due."""
    if not len(message):
        raise FrameError(NEVER_SENT)
    frames = unpack_message(message, max(map(_numel, pieces), default=0))
    _check_tensors(frames, pieces, dtype)
    for frame, ours in zip(frames, own, strict=True):
        transform = from_record(frame.record).transform.fitted(frame.shape)
        if (frame.width, transform) != (ours.width, ours.transform or Identity()):
            raise FrameError(f"entries of {frame.width} numbers after another transform than on this rank")
    return frames


@contextmanager
def blaming(rank: int) -> Iterator[None]:
    """What is wrong with a rank's bytes is a `PeerError` that names it."""
    try:
        yield
    except FrameError as error:
        raise PeerError(f"rank {rank}: {error}") from error


def gather(message: bytes, comm: Communicator, channel: str) -> list[memoryview]:
    """Every rank's message, if this rank's came back as it was."""
    messages = comm.all_gather(message, channel)
    if bytes(messages[comm.rank]) != message:  # comparing the view itself would go byte by byte
        raise PeerError(f"rank {comm.rank}: its message came back changed")
    return messages


def own_dtype(piece: Piece) -> str:
    return piece.dtype


def _numel(piece: Piece) -> int:
    return piece.x.numel if isinstance(piece.x, Sparse) else piece.x.size


def _check_tensors(frames: Sequence[Frame], pieces: Sequence[Piece], dtype: Callable[[Piece], str]) -> None:
    """Whether these are the tensors that are due."""
    if len(frames) != len(pieces):
        raise FrameError(f"{len(frames)} tensors where {len(pieces)} are due")
    for frame, piece in zip(frames, pieces, strict=True):
        if frame.shape != piece.shape or frame.dtype != dtype(piece):
            raise FrameError(
                f"a frame of {frame.dtype} {frame.shape} where {piece.name!r} is {dtype(piece)} {piece.shape}"
            )
