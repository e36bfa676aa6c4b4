"""The union of the ranks' supports, found by the method that moves the fewest bytes.

1. Every rank sends a note: how large its coded supports and values are, and a digest of its supports. From the notes
   all ranks choose alike:
2. `same`: all supports are the same; nothing travels. `coded`: every rank's coded supports, in an all_gather; who
   received them also knows each rank's own support. `bits`: one bit per entry that there could be, in an all_reduce.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from sparsewire import kernels
from sparsewire.comm import Communicator
from sparsewire.core.sparse import Sparse, merged
from sparsewire.errors import FrameError
from sparsewire.frames.codec import decode_support
from sparsewire.frames.piece import Piece, Selected
from sparsewire.frames.seal import Sealed, is_ordered
from sparsewire.frames.wire import Frame, pack_message
from sparsewire.kernels import Array

from ..base import ExchangeContext
from ..messages import blaming, gather, own_dtype, parse

FIELDS, CHECKSUM, DIGEST = struct.Struct("<QQQ16s16s"), struct.Struct("<I"), 16


def gathered(sizes: Sequence[int]) -> float:
    """The bytes that a rank receives on average when messages of these sizes go from all to all."""
    return (ranks(sizes) - 1) * sum(sizes) / len(sizes)


def reduced(size: int, sizes: Sequence[object]) -> float:
    """The bytes that a rank receives when an array of `size` bytes is summed over as many ranks as `sizes` has."""
    return 2 * size * (ranks(sizes) - 1) / ranks(sizes)


def ranks(sizes: Sequence[object]) -> int:
    """The number of ranks that bytes are counted for: at least 2, as one rank alone moves none by any method."""
    return max(2, len(sizes))


@dataclass(frozen=True)
class Note:
    """What a rank sends the others first: bytes of its coded supports and values, its numbers, and two digests."""

    supports: int
    values: int
    numbers: int
    facts: bytes  # of what must be the same on every rank
    support: bytes

    def pack(self) -> bytes:
        body = FIELDS.pack(self.supports, self.values, self.numbers, self.facts, self.support)
        return body + CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def read(cls, message: memoryview) -> Note:
        if not len(message):
            raise FrameError("it failed before it could send")
        body = bytes(message[: FIELDS.size])
        if len(message) != FIELDS.size + CHECKSUM.size or message[FIELDS.size :] != CHECKSUM.pack(zlib.crc32(body)):
            raise FrameError("its note is damaged")
        return cls(*FIELDS.unpack(body))


@dataclass(frozen=True)
class Call:
    """One call of an exchange: what this rank offers of each piece, and the frames of that."""

    offers: Sequence[Selected]
    context: ExchangeContext
    sealed: Sequence[Sealed]

    @classmethod
    def of(cls, offers: Sequence[Selected], context: ExchangeContext) -> Call:
        return cls(offers, context, [context.encode(offer) for offer in offers])

    @property
    def pieces(self) -> list[Piece]:
        return [offer.piece for offer in self.offers]

    @property
    def keys(self) -> list[int]:
        return [offer.ctx.key for offer in self.offers]

    @property
    def own(self) -> list[Sparse]:
        return [coded.sent for coded in self.sealed]

    @property
    def channel(self) -> str:
        return self.context.channel(self.pieces)

    def note(self, settings: str) -> Note:
        frames, support = [coded.fields for coded in self.sealed], blake2b(digest_size=DIGEST)
        facts = [(frame.shape, frame.dtype, frame.width, key) for frame, key in zip(frames, self.keys, strict=True)]
        for sent in self.own:
            support.update(struct.pack("<Q", sent.count) + sent.indices.tobytes())
        return Note(
            sum(len(frame.indices) for frame in frames),
            sum(len(frame.values) for frame in frames),
            sum(frame.count * frame.width for frame in frames),
            blake2b(repr((settings, facts)).encode(), digest_size=DIGEST).digest(),
            support.digest(),
        )


def gather_notes(note: Note, comm: Communicator, channel: str) -> list[Note]:
    """Every rank's note; a rank that is about something else is a `PeerError`."""
    notes = []
    for rank, message in enumerate(gather(note.pack(), comm, channel)):
        with blaming(rank):
            notes.append(Note.read(message))
            if notes[-1].facts != note.facts:
                raise FrameError("other tensors, or another scheme, step or seed, than on this rank")
    return notes


@dataclass(frozen=True)
class Union:
    """The entries of each piece that any rank has; with each rank's frames of supports where those are known."""

    entries: list[Array]
    frames: list[list[Frame]] | None


def choose_method(notes: Sequence[Note], bits: int) -> str:
    """The method that finds the union; `bits` is the size in bytes of one bit per entry that there could be."""
    if len({note.support for note in notes}) == 1:
        return "same"
    return "bits" if reduced(bits, notes) < gathered([note.supports for note in notes]) else "coded"


def size_of_bits(call: Call) -> int:
    return sum(-(-sent.size // 8) for sent in call.own)


def find(method: str, call: Call) -> Union:
    """The union, by one of the methods."""
    return {"same": _same, "coded": _coded, "bits": _bits}[method](call)


def _same(call: Call) -> Union:
    """Coded supports are the same as well, unless they are in an order that is each rank's own."""
    alike = not any(is_ordered(call.context.scheme, sent.width) for sent in call.own)
    frames = [[coded.fields for coded in call.sealed]] * call.context.comm.size
    return Union([sent.indices for sent in call.own], frames if alike else None)


def _coded(call: Call) -> Union:
    comm, frames = call.context.comm, []
    own = [replace(coded.fields, values=b"") for coded in call.sealed]
    with call.context.clock("exchange"):
        messages = gather(pack_message(own), comm, f"{call.channel} supports")
    with call.context.clock("decode"):
        by_rank: list[list[Array]] = []
        for rank, message in enumerate(messages):
            with blaming(rank):
                frames.append([_kept(frame) for frame in parse(message, call.pieces, call.own, own_dtype)])
                by_rank.append([decode_support(frame) for frame in frames[-1]])
        return Union([merged(supports) for supports in zip(*by_rank, strict=True)], frames)


def _kept(frame: Frame) -> Frame:
    """A frame whose section of indices outlives the next collective."""
    return replace(frame, indices=bytes(frame.indices))


def _bits(call: Call) -> Union:
    marks = [kernels.bitmap(sent.indices, sent.size) for sent in call.own]
    with call.context.clock("exchange"):
        union = call.context.comm.all_reduce(np.concatenate(marks), "bor")
    with call.context.clock("decode"):
        ends = np.cumsum([mark.size for mark in marks])[:-1]
        parts = zip(np.split(union, ends), call.own, strict=True)
        return Union([_marked(part, sent.size) for part, sent in parts], None)


def _marked(bits: Array, size: int) -> Array:
    return kernels.from_bitmap(bits, size, int(np.count_nonzero(np.unpackbits(bits))))
