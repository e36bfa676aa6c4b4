"""Messages between server and clients ⇄ bytes, as docs/reference/format.md says: what surrounds the frames.

Down, the server says which round the message leads to and the digest of the model there; then one of

    model    names, types and shapes, the schemes of both ways, and all weights
    rounds   the changes of one or several rounds, as they were sent at the time
    patch    the weights, as they are now, of all elements that have changed since a round

Up, a client says from which model it started, how many examples it has used, and its change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsewire.core.binary import Reader, text, varint
from sparsewire.errors import HeaderError, InputError, LimitExceeded
from sparsewire.frames.wire import DOWN_MAGIC, UP_MAGIC, VERSION, Data, checked, with_checksum

from .model import DIGEST_SIZE, MOST_DIMENSIONS, MOST_NAME, MOST_TENSORS, STORED, TensorInfo

MODEL, ROUNDS, PATCH = range(3)
MOST_SCHEME = 4096


@dataclass(frozen=True)
class Down:
    """The server's message. `base` is the round that it starts from; `counted` the last round in which this client's
    update was counted, plus 1, or 0."""

    kind: int
    round: int
    base: int
    counted: int
    digest: bytes
    body: bytes | memoryview

    def pack(self) -> bytes:
        head = [DOWN_MAGIC, bytes([VERSION, self.kind]), varint(self.round), varint(self.base), varint(self.counted)]
        return with_checksum([*head, self.digest, self.body])


def unpack_down(data: Data) -> Down:
    reader = _opened(data, DOWN_MAGIC)
    kind = reader.byte()
    if kind > PATCH:
        raise HeaderError(f"a message of the unknown kind {kind}")
    facts = reader.varint(), reader.varint(), reader.varint()
    digest = bytes(reader.take(DIGEST_SIZE))
    return Down(kind, *facts, digest, reader.take(reader.left))


@dataclass(frozen=True)
class Up:
    """A client's message."""

    round: int
    examples: int
    digest: bytes
    body: bytes | memoryview

    def pack(self) -> bytes:
        head = [UP_MAGIC, bytes([VERSION]), varint(self.round), varint(self.examples), self.digest]
        return with_checksum([*head, self.body])


def unpack_up(data: Data) -> Up:
    reader = _opened(data, UP_MAGIC)
    facts = reader.varint(), reader.varint()
    digest = bytes(reader.take(DIGEST_SIZE))
    return Up(*facts, digest, reader.take(reader.left))


def _opened(data: Data, magic: bytes) -> Reader:
    """Behind magic and version, which are right."""
    reader = Reader(checked(data, magic))
    reader.take(len(magic) + 1)
    return reader


# --- several rounds --------------------------------------------------------------------------------------------------


def pack_rounds(rounds: Sequence[bytes]) -> bytes:
    return b"".join(part for body in rounds for part in (varint(len(body)), body))


def unpack_rounds(body: Data, count: int) -> list[memoryview]:
    reader = Reader(memoryview(body))
    rounds = []
    while reader.left:
        rounds.append(reader.take(reader.varint()))
    if len(rounds) != count:
        raise HeaderError(f"{len(rounds)} rounds where {count} are due")
    return rounds


# --- a model ---------------------------------------------------------------------------------------------------------


def pack_model(schemes: tuple[str, str], tensors: Sequence[TensorInfo], weights: bytes) -> bytes:
    if len(tensors) > MOST_TENSORS:
        raise InputError(f"{len(tensors)} tensors, a message has at most {MOST_TENSORS}; join some")
    heads = [part for info in tensors for part in _pack_tensor(info)]
    return b"".join([*map(text, schemes), varint(len(tensors)), *heads, weights])


def _pack_tensor(info: TensorInfo) -> list[bytes]:
    flags = bytes([STORED.index(info.stored) << 1 | info.dense, len(info.shape)])
    return [text(info.name), flags, *map(varint, info.shape)]


def unpack_model(body: Data, most_elements: int) -> tuple[tuple[str, str], list[TensorInfo], memoryview]:
    """(the schemes for the way up and down, the tensors, the bytes of their frames)."""
    reader = Reader(memoryview(body))
    schemes = reader.text(MOST_SCHEME), reader.text(MOST_SCHEME)
    count = reader.varint()
    if count > min(MOST_TENSORS, reader.left):
        raise HeaderError(f"a model of {count} tensors in {reader.left} bytes")
    tensors = [_unpack_tensor(reader) for _ in range(count)]
    if len({info.name for info in tensors}) != count:
        raise HeaderError("two tensors have one name")
    if sum(info.size for info in tensors) > most_elements:
        raise LimitExceeded(f"a model of more than max_elements={most_elements} elements")
    return schemes, tensors, reader.take(reader.left)


def _unpack_tensor(reader: Reader) -> TensorInfo:
    name, flags, dimensions = reader.text(MOST_NAME), reader.byte(), reader.byte()
    if flags >> 1 >= len(STORED) or dimensions > MOST_DIMENSIONS or not name:
        raise HeaderError(f"a tensor {name!r} of the type {flags >> 1} with {dimensions} dimensions")
    shape = tuple(reader.varint() for _ in range(dimensions))
    info = TensorInfo(name, shape, STORED[flags >> 1], bool(flags & 1))
    if not info.is_valid:
        raise HeaderError(f"a tensor {name!r} that no server sends")
    return info
