"""Integers of variable length, and a reader that never leaves its buffer."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from sparsewire.errors import HeaderError, TruncatedFrame
from sparsewire.kernels import Array, Bytes


def varint(number: int) -> bytes:
    """7 bits a byte, least significant first.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def text(words: str) -> bytes:
    """UTF-8, after its length."""
    data = words.encode()
    return varint(len(data)) + data


def array(body: bytes | memoryview, dtype: str = "u1", copy: bool = False) -> Array:
    """The bytes as an array, for a while or, copied, for good; `ValueError` if they are not a whole number of items."""
    numbers: Array = np.frombuffer(body, dtype)
    # Native kernels expect items at addresses that suit them; sections start anywhere.
    return numbers.copy() if copy or not numbers.flags.aligned else numbers


def join(*parts: Any) -> bytes:
    """The bytes of buffers and arrays in a row, copied once."""
    return b"".join(parts)


class Reader:
    """Takes bytes off the front of a buffer."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data).cast("B")
        self.offset = 0

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.offset:
            raise TruncatedFrame(f"{size} bytes were promised at offset {self.offset}, {self.left} are left")
        self.offset += size
        return self.data[self.offset - size : self.offset]

    def bytes(self, size: int) -> Bytes:
        return np.frombuffer(self.take(size), np.uint8)

    def rest(self) -> Bytes:
        return self.bytes(self.left)

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def byte(self) -> int:
        return self.take(1)[0]

    def text(self, most: int) -> str:
        """What `text` wrote, of at most so many bytes."""
        size = self.varint()
        if size > most:
            raise HeaderError(f"a text of {size} bytes")
        try:
            return bytes(self.take(size)).decode()
        except UnicodeDecodeError:
            raise HeaderError("a text is not UTF-8") from None

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.byte()
            number |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise HeaderError("an integer has more than 64 bits")
        if number >= 2**64 or (byte == 0 and shift):
            raise HeaderError("an integer is not in its shortest form")
        return number


def to_bf16(number: float, nearest: bool = False) -> int:
    """The 16 bits of a bf16 number, rounded to the nearest or towards zero."""
    return int(struct.unpack("<I", struct.pack("<f", number))[0]) + (nearest << 15) >> 16


def from_bf16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
