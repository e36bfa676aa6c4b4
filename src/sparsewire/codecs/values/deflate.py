"""`deflate`: zlib on the bytes, shuffled first so that like bytes of neighbouring numbers stand together."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from sparsewire.core.binary import array

from ..contract import ByteCodec


def shuffle(data: bytes | memoryview, item: int) -> bytes:
    """Byte j of every item together, j = 0 … item−1; a rest that is no whole item stays at the end.

    >>> shuffle(b"a1b2c", 2)
    b'ab12c'
    """
    whole = len(data) // item * item
    return array(data)[:whole].reshape(-1, item).T.tobytes() + bytes(data[whole:])


def unshuffle(data: bytes, item: int) -> bytes:
    whole = len(data) // item * item
    return np.ascontiguousarray(array(data)[:whole].reshape(item, -1).T).tobytes() + data[whole:]


@dataclass(frozen=True)
class Shuffled(ByteCodec):
    """A byte compressor with a level, behind a shuffle."""

    level: int = 6
    shuffle: bool = True

    @abstractmethod
    def squeeze(self, data: bytes) -> bytes: ...

    @abstractmethod
    def expand(self, data: memoryview, limit: int) -> bytes: ...

    def compress(self, data: bytes, item_size: int) -> bytes:
        return self.squeeze(shuffle(data, item_size) if self.shuffle and item_size > 1 else data)

    def decompress(self, data: memoryview, item_size: int, limit: int) -> bytes:
        expanded = self.expand(data, limit)
        return unshuffle(expanded, item_size) if self.shuffle and item_size > 1 else expanded


@dataclass(frozen=True)
class Deflate(Shuffled):
    """zlib, `level` 1 (fast) to 9 (small)."""

    id = "deflate"
    wire_id = 5

    def check(self) -> None:
        self.expect(1 <= self.level <= 9, "level lies in 1 … 9")

    def squeeze(self, data: bytes) -> bytes:
        return zlib.compress(data, self.level)

    def expand(self, data: memoryview, limit: int) -> bytes:
        stream = zlib.decompressobj()
        try:
            # One byte more than allowed tells a stream that is too long; max_length=0 would mean no limit at all.
            expanded = stream.decompress(data, limit + 1)
        except zlib.error as error:
            raise ValueError(f"not a zlib stream: {error}") from None
        if len(expanded) > limit or not stream.eof or stream.unused_data:
            raise ValueError("the zlib stream is longer or shorter than the frame says")
        return expanded
