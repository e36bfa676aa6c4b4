"""A scheme as frames carry it, ⇄ bytes: per slot the stages, each a number or name and its settings in order."""

from __future__ import annotations

import struct
from decimal import Decimal

from sparsewire.core.binary import Reader, text, varint
from sparsewire.errors import HeaderError

SLOT_COUNT = 6
MOST_STAGES, MOST_PARAMETERS, MOST_TEXT, MOST_DECIMALS = 8, 32, 256, 30

Parameter = None | bool | int | float | str
CodecRecord = tuple[int | str, tuple[Parameter, ...]]
Record = tuple[tuple[CodecRecord, ...], ...]


def pack_record(record: Record) -> bytes:
    """A scheme as frames carry it."""
    return b"".join(bytes([len(stages)]) + b"".join(map(_pack_stage, stages)) for stages in record)


def _pack_stage(stage: CodecRecord) -> bytes:
    name, parameters = stage
    head = varint(name) if isinstance(name, int) else varint(0) + text(name)
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
    return b"\6" + text(value)


def _pack_float(value: float) -> bytes:
    """As settings are written, 0.01, where that is shorter than all bits of the number."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    if isinstance(exponent, int) and -MOST_DECIMALS <= exponent <= 0 and not sign:
        short = b"\7" + varint(int("".join(map(str, digits)))) + bytes([-exponent])
        if len(short) < 9:
            return short
    return b"\5" + struct.pack("<d", value)


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
    name = reader.varint() or reader.text(MOST_TEXT)
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
            return reader.text(MOST_TEXT)
        case 7:
            return _unpack_decimal(reader)
    raise HeaderError("a setting of an unknown type")


def _unpack_decimal(reader: Reader) -> float:
    digits, places = reader.varint(), reader.byte()
    if places > MOST_DECIMALS:
        raise HeaderError(f"a setting with {places} decimals")
    return float(f"{digits}e-{places}")
