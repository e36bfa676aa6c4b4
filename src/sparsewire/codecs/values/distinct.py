"""`distinct`: numbers that repeat, without loss: a table of those that there are, and Huffman codes of their places.

What several ranks sent as one magnitude each is such numbers when it is added up. Where there are too many, they are
sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, array, join, varint
from sparsewire.core.sparse import load, store
from sparsewire.kernels import Array, Bytes

from ..contract import Context, ValueCodec
from .raw import STORED, read

MOST = 256


@dataclass(frozen=True)
class Distinct(ValueCodec):
    """A table of up to 256 numbers and a code for each value; or, if that is smaller, the numbers themselves."""

    id = "distinct"
    wire_id = 20

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        if not values.size:
            return b"", values
        stored = store(values, ctx.dtype)
        bits, symbols = np.unique(stored.view(_bits(ctx.dtype)), return_inverse=True)
        bodies = [join(varint(0), stored)]
        if bits.size <= MOST:
            lengths = kernels.huffman_lengths(np.bincount(symbols))
            stream = kernels.huffman_encode(symbols.astype(np.uint8), lengths)
            bodies.append(join(varint(bits.size), bits, kernels.pack_bits(lengths.astype(np.uint32), 4), stream))
        return min(bodies, key=len), values

    def decode(self, body: memoryview, ctx: Context) -> Array:
        table, lengths, rest = self._streams(body, ctx)
        if not table.size:
            return read(rest.data, ctx.dtype, ctx.count)
        numbers = table.view(STORED[ctx.dtype])[kernels.huffman_decode(rest, lengths, ctx.count)]
        return load(numbers, ctx.dtype)

    def size_limit(self, ctx: Context) -> int:
        return ctx.count and 1 + ctx.count * _bits(ctx.dtype).itemsize

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        table, _, rest = self._streams(body, ctx)
        return {"table": len(body) - rest.size, "values": rest.size} if table.size else {}

    def _streams(self, body: memoryview, ctx: Context) -> tuple[Array, Bytes, Bytes]:
        reader = Reader(body)
        size = reader.varint() if ctx.count else 0
        if size > min(MOST, ctx.count):
            raise ValueError(f"a table of {size} numbers for {ctx.count} values")
        kind = _bits(ctx.dtype)
        table = array(reader.take(size * kind.itemsize), kind.str)
        lengths = kernels.unpack_bits(reader.bytes((size + 1) // 2), 4, size).astype(np.uint8)
        if not (table[1:] > table[:-1]).all() or not lengths.all():
            raise ValueError("the table does not ascend, or holds a number that has no code")
        return table, lengths, reader.rest()


def _bits(dtype: str) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"<u{STORED[dtype][-1]}")
