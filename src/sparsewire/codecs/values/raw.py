"""`raw`: the values uncompressed."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.core.binary import array, join
from sparsewire.core.sparse import load, store
from sparsewire.kernels import Array

from ..contract import Context, ValueCodec

STORED = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2"}


def read(body: memoryview, dtype: str, count: int) -> Array:
    """`count` numbers of `dtype` in its work dtype."""
    stored = array(body, STORED[dtype], copy=True)
    if stored.size != count:
        raise ValueError(f"{stored.size} numbers, not {count}")
    return load(stored, dtype)


@dataclass(frozen=True)
class RawValues(ValueCodec):
    """Numbers in the tensor's own dtype."""

    id = "raw"
    wire_id = 1

    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        return join(store(values, ctx.dtype)), values

    def decode(self, body: memoryview, ctx: Context) -> Array:
        return read(body, ctx.dtype, ctx.count)

    def size_limit(self, ctx: Context) -> int:
        return ctx.count * self.item_size(ctx)

    def item_size(self, ctx: Context) -> int:
        return int(STORED[ctx.dtype][-1])
