"""Frame and bundle ⇄ bytes, as docs/reference/format.md says. The only file that packs a header."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsewire.core.binary import Reader, varint
from sparsewire.core.sparse import is_shape
from sparsewire.errors import (
    ChecksumError,
    FrameError,
    HeaderError,
    InputError,
    LimitExceeded,
    TruncatedFrame,
    UnknownVersion,
)

MAGIC, BUNDLE_MAGIC = b"\x89SWF", b"\x89SWB"
DOWN_MAGIC, UP_MAGIC = b"\x89SWD", b"\x89SWU"
KNOWN = {
    MAGIC: "a sparsewire frame", BUNDLE_MAGIC: "a bundle of frames", DOWN_MAGIC: "a federated server's message",
    UP_MAGIC: "a federated client's message",
}  # fmt: skip
VERSION = 1
DTYPE_CODES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4}
MOST_DIMENSIONS = 32
CRC_SIZE = 4
WIDE = 1  # the flag for entries of several numbers
MOST_WIDTH = 2**32

Data = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Frame:
    """A frame's fields; the sections are views of the bytes they were read from."""

    dtype: str
    shape: tuple[int, ...]
    count: int
    record: bytes
    indices: bytes | memoryview
    values: bytes | memoryview
    width: int = 1

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_DIMENSIONS:
            raise InputError(f"{len(self.shape)} dimensions, a frame has at most {MOST_DIMENSIONS}; reshape first")
        if self.width > MOST_WIDTH:
            raise InputError(
                f"entries of {self.width} numbers, a frame has at most {MOST_WIDTH}; send elements instead"
            )

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def common(self) -> tuple[str, int, bytes]:
        """What the tensors of a bundle share."""
        return self.dtype, self.width, self.record


def pack(frame: Frame) -> bytes:
    shape, sizes = _pack_shape(frame), _pack_sizes(frame)
    return with_checksum(
        [*_pack_start(MAGIC, frame), *shape, *_pack_record(frame), *sizes, frame.indices, frame.values]
    )


def unpack(data: Data, max_numel: int | None = None) -> Frame:
    """Reads a frame, having checked its checksum first and every length against the buffer."""
    reader = Reader(checked(data, MAGIC))
    dtype, wide = _read_start(reader)
    shape, count = _shape(reader, max_numel), reader.varint()
    width, record = _read_record(reader, wide)
    sizes = reader.varint(), reader.varint()
    frame = Frame(dtype, shape, count, record, reader.take(sizes[0]), reader.take(sizes[1]), width)
    if reader.left:
        raise HeaderError(f"{reader.left} bytes too many")
    return frame


# --- bundles -----------------------------------------------------------------------------------------------------


def pack_bundle(frames: Sequence[Frame]) -> bytes:
    """Tensors of one dtype, width and scheme, with what they share said once: smaller than frames for two or more."""
    if len({frame.common for frame in frames}) != 1:
        raise InputError("the tensors of a bundle, at least one, share their dtype, their width and their scheme")
    first = frames[0]
    heads = [part for frame in frames for part in (*_pack_shape(frame), *_pack_sizes(frame))]
    sections = [section for frame in frames for section in (frame.indices, frame.values)]
    start = [*_pack_start(BUNDLE_MAGIC, first), *_pack_record(first), varint(len(frames))]
    return with_checksum([*start, *heads, *sections])


def unpack_bundle(data: Data, max_numel: int | None = None) -> list[Frame]:
    """The tensors of a bundle, having checked it as `unpack` does; `max_numel` is for each of them."""
    reader = Reader(checked(data, BUNDLE_MAGIC))
    dtype, wide = _read_start(reader)
    width, record = _read_record(reader, wide)
    size = reader.varint()
    if not 0 < size <= reader.left:
        raise HeaderError(f"a bundle of {size} tensors in {reader.left} bytes")
    heads = [(_shape(reader, max_numel), reader.varint(), reader.varint(), reader.varint()) for _ in range(size)]
    frames = [
        Frame(dtype, shape, count, record, reader.take(indices), reader.take(values), width)
        for shape, count, indices, values in heads
    ]
    if reader.left:
        raise HeaderError(f"{reader.left} bytes too many")
    return frames


def is_bundle(data: Data) -> bool:
    return bytes(data[: len(BUNDLE_MAGIC)]) == BUNDLE_MAGIC


def pack_message(frames: Iterable[Frame]) -> bytes:
    """Tensors in their order, as frames and bundles with their lengths: neighbours that share enough are bundled."""
    runs = (list(run) for _, run in itertools.groupby(frames, key=lambda frame: frame.common))
    items = (pack_bundle(run) if len(run) > 1 else pack(run[0]) for run in runs)
    return b"".join(part for item in items for part in (varint(len(item)), item))


def unpack_message(message: Data, max_numel: int | None = None) -> list[Frame]:
    """The tensors of a message; `max_numel` is for each of them."""
    reader, frames = Reader(memoryview(message)), []
    while reader.left:
        item = reader.take(reader.varint())
        frames += unpack_bundle(item, max_numel) if is_bundle(item) else [unpack(item, max_numel)]
    return frames


# --- fields ------------------------------------------------------------------------------------------------------


def _pack_start(magic: bytes, frame: Frame) -> list[bytes]:
    return [magic, bytes([VERSION, WIDE * (frame.width > 1), DTYPE_CODES[frame.dtype]])]


def _pack_shape(frame: Frame) -> list[bytes]:
    return [bytes([len(frame.shape)]), *map(varint, frame.shape), varint(frame.count)]


def _pack_record(frame: Frame) -> list[bytes]:
    width = [varint(frame.width)] if frame.width > 1 else []
    return [*width, varint(len(frame.record)), frame.record]


def _pack_sizes(frame: Frame) -> list[bytes]:
    return [varint(len(frame.indices)), varint(len(frame.values))]


def with_checksum(parts: Sequence[bytes | memoryview]) -> bytes:
    """The parts in a row, and their checksum."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join([*parts, struct.pack("<I", crc)])


def checked(given: Data, magic: bytes) -> memoryview:
    """The bytes before the checksum, once magic, version and checksum are right."""
    data = memoryview(given).cast("B")
    if bytes(data[: len(magic)]) != magic[: len(data)]:
        kind = KNOWN.get(bytes(data[: len(magic)]))
        raise FrameError(f"these bytes are not {KNOWN[magic]}" + (f", but {kind}" if kind else ""))
    if len(data) < len(magic) + 4 + CRC_SIZE:
        raise TruncatedFrame(f"{len(data)} bytes are too few for a frame")
    if data[len(magic)] != VERSION:
        raise UnknownVersion(f"version {data[len(magic)]} of the format; this sparsewire reads version {VERSION}")
    body, (crc,) = data[:-CRC_SIZE], struct.unpack("<I", data[-CRC_SIZE:])
    if zlib.crc32(body) != crc:
        raise ChecksumError("the checksum is wrong: the frame is damaged or cut short")
    return body


def _read_start(reader: Reader) -> tuple[str, bool]:
    """(dtype, whether entries have several numbers)."""
    reader.take(len(MAGIC) + 1)
    flags, code = reader.byte(), reader.byte()
    if flags & ~WIDE:
        raise HeaderError("the frame has flags that this version does not know")
    for name, known in DTYPE_CODES.items():
        if known == code:
            return name, bool(flags & WIDE)
    raise HeaderError(f"there is no dtype {code}")


def _read_record(reader: Reader, wide: bool) -> tuple[int, bytes]:
    """(numbers per entry, whose field is there only for more than one; the scheme)."""
    width = reader.varint() if wide else 1
    if wide and not 2 <= width <= MOST_WIDTH:
        raise HeaderError(f"entries of {width} numbers, the field is for 2 … {MOST_WIDTH}")
    return width, bytes(reader.take(reader.varint()))


def _shape(reader: Reader, max_numel: int | None) -> tuple[int, ...]:
    dimensions = reader.byte()
    if dimensions > MOST_DIMENSIONS:
        raise HeaderError(f"{dimensions} dimensions, at most {MOST_DIMENSIONS} are allowed")
    shape = tuple(reader.varint() for _ in range(dimensions))
    if not is_shape(shape):
        raise HeaderError(f"no tensor has the shape {shape}: 2**63 elements or more, or sizes beside a 0 that overflow")
    if max_numel is not None and math.prod(shape) > max_numel:
        raise LimitExceeded(f"{math.prod(shape)} elements, more than max_numel={max_numel} allows", "max_numel")
    return shape
