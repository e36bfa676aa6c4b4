"""Frame ⇄ bytes, as docs/FORMAT.md says. The only file that packs a header."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from decimal import Decimal

from .binary import Reader, varint
from .errors import ChecksumError, FrameError, HeaderError, InputError, LimitExceeded, TruncatedFrame, UnknownVersion

MAGIC = b"\x89SWF"
VERSION = 1
DTYPE_CODES = {"float32": 1, "float64": 2, "float16": 3, "bfloat16": 4}
SLOT_COUNT = 6
MOST_DIMENSIONS, MOST_STAGES, MOST_PARAMETERS, MOST_TEXT = 32, 8, 32, 256
MOST_DECIMALS = 30
CRC_SIZE = 4
WIDE = 1  # the flag for entries of several numbers
MOST_WIDTH = 2**32

Parameter = None | bool | int | float | str
CodecRecord = tuple[int | str, tuple[Parameter, ...]]
Record = tuple[tuple[CodecRecord, ...], ...]


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

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def pack(frame: Frame) -> bytes:
    if len(frame.shape) > MOST_DIMENSIONS:
        raise InputError(f"{len(frame.shape)} dimensions, a frame has at most {MOST_DIMENSIONS}; reshape first")
    if frame.width > MOST_WIDTH:
        raise InputError(f"entries of {frame.width} numbers, a frame has at most {MOST_WIDTH}; send elements instead")
    head = [MAGIC, bytes([VERSION, WIDE * (frame.width > 1), DTYPE_CODES[frame.dtype], len(frame.shape)])]
    head += [varint(n) for n in (*frame.shape, frame.count)]
    head += [varint(frame.width)] if frame.width > 1 else []
    head += [varint(len(frame.record)), frame.record, varint(len(frame.indices)), varint(len(frame.values))]
    body = b"".join([*head, frame.indices, frame.values])
    return body + struct.pack("<I", zlib.crc32(body))


def unpack(data: bytes | bytearray | memoryview, max_numel: int | None = None) -> Frame:
    """Reads a frame, having checked its checksum first and every length against the buffer."""
    reader = Reader(_checked(memoryview(data).cast("B")))
    reader.take(len(MAGIC) + 1)
    flags = reader.byte()
    if flags & ~WIDE:
        raise HeaderError("the frame has flags that this version does not know")
    dtype = _dtype(reader.byte())
    shape = _shape(reader, max_numel)
    count = reader.varint()
    width = _width(reader) if flags & WIDE else 1
    record = bytes(reader.take(reader.varint()))
    sizes = reader.varint(), reader.varint()
    frame = Frame(dtype, shape, count, record, reader.take(sizes[0]), reader.take(sizes[1]), width)
    if reader.left:
        raise HeaderError(f"{reader.left} bytes too many")
    return frame


def _checked(data: memoryview) -> memoryview:
    """The bytes before the checksum, once magic, version and checksum are right."""
    if bytes(data[: len(MAGIC)]) != MAGIC[: len(data)]:
        raise FrameError("these bytes are not a sparsewire frame")
    if len(data) < len(MAGIC) + 4 + CRC_SIZE:
        raise TruncatedFrame(f"{len(data)} bytes are too few for a frame")
    if data[len(MAGIC)] != VERSION:
        raise UnknownVersion(f"version {data[len(MAGIC)]} of the format; this sparsewire reads version {VERSION}")
    body, (crc,) = data[:-CRC_SIZE], struct.unpack("<I", data[-CRC_SIZE:])
    if zlib.crc32(body) != crc:
        raise ChecksumError("the checksum is wrong: the frame is damaged or cut short")
    return body


def _dtype(code: int) -> str:
    for name, known in DTYPE_CODES.items():
        if known == code:
            return name
    raise HeaderError(f"there is no dtype {code}")


def _width(reader: Reader) -> int:
    """Numbers per entry; the field is there only for more than one."""
    width = reader.varint()
    if not 2 <= width <= MOST_WIDTH:
        raise HeaderError(f"entries of {width} numbers, the field is for 2 … {MOST_WIDTH}")
    return width


def _shape(reader: Reader, max_numel: int | None) -> tuple[int, ...]:
    dimensions = reader.byte()
    if dimensions > MOST_DIMENSIONS:
        raise HeaderError(f"{dimensions} dimensions, at most {MOST_DIMENSIONS} are allowed")
    shape = tuple(reader.varint() for _ in range(dimensions))
    if math.prod(shape) >= 2**63:
        raise HeaderError("2**63 elements or more")
    if max_numel is not None and math.prod(shape) > max_numel:
        raise LimitExceeded(f"{math.prod(shape)} elements, the caller allows max_numel={max_numel}")
    return shape


# --- the scheme record -------------------------------------------------------------------------------------------


def pack_record(record: Record) -> bytes:
    """A scheme as frames carry it."""
    return b"".join(bytes([len(stages)]) + b"".join(map(_pack_stage, stages)) for stages in record)


def _pack_stage(stage: CodecRecord) -> bytes:
    name, parameters = stage
    head = varint(name) if isinstance(name, int) else varint(0) + _pack_text(name)
    return head + varint(len(parameters)) + b"".join(map(_pack_parameter, parameters))


def _pack_parameter(value: Parameter) -> bytes:
    match value:
        case None:
            return b"\0"
        case bool():
            return b"\2" if value else b"\1"
        case int():
            return b"\3" + varint(value) if value >= 0 else b"\4" + varint(-1 - value)
        case float():
            return _pack_float(value)
    return b"\6" + _pack_text(value)


def _pack_float(value: float) -> bytes:
    """As settings are written, 0.01, where that is shorter than all bits of the number."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    if isinstance(exponent, int) and -MOST_DECIMALS <= exponent <= 0 and not sign:
        short = b"\7" + varint(int("".join(map(str, digits)))) + bytes([-exponent])
        if len(short) < 9:
            return short
    return b"\5" + struct.pack("<d", value)


def _pack_text(text: str) -> bytes:
    data = text.encode()
    return varint(len(data)) + data


def unpack_record(data: bytes) -> Record:
    reader = Reader(data)
    record = tuple(_unpack_stages(reader) for _ in range(SLOT_COUNT))
    if reader.left:
        raise HeaderError(f"{reader.left} bytes too many in the scheme")
    return record


def _unpack_stages(reader: Reader) -> tuple[CodecRecord, ...]:
    count = reader.byte()
    if not 1 <= count <= MOST_STAGES:
        raise HeaderError(f"a slot of {count} stages")
    return tuple(_unpack_stage(reader) for _ in range(count))


def _unpack_stage(reader: Reader) -> CodecRecord:
    name = reader.varint() or _unpack_text(reader)
    count = reader.varint()
    if count > MOST_PARAMETERS:
        raise HeaderError(f"a codec with {count} settings")
    return name, tuple(_unpack_parameter(reader) for _ in range(count))


def _unpack_parameter(reader: Reader) -> Parameter:
    match reader.byte():
        case 0:
            return None
        case 1:
            return False
        case 2:
            return True
        case 3:
            return reader.varint()
        case 4:
            return -1 - reader.varint()
        case 5:
            return float(struct.unpack("<d", reader.take(8))[0])
        case 6:
            return _unpack_text(reader)
        case 7:
            return _unpack_decimal(reader)
    raise HeaderError("a setting of an unknown type")


def _unpack_decimal(reader: Reader) -> float:
    digits, places = reader.varint(), reader.byte()
    if places > MOST_DECIMALS:
        raise HeaderError(f"a setting with {places} decimals")
    return float(f"{digits}e-{places}")


def _unpack_text(reader: Reader) -> str:
    size = reader.varint()
    if size > MOST_TEXT:
        raise HeaderError(f"a name of {size} bytes")
    try:
        return bytes(reader.take(size)).decode()
    except UnicodeDecodeError:
        raise HeaderError("a name is not UTF-8") from None
