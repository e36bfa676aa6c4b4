"""Codes of a few bits each: packed, or where a byte codec follows, as whole bytes."""

from __future__ import annotations

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import array
from sparsewire.kernels import Array

from ..contract import Context


def item(bits: int) -> np.dtype[np.unsignedinteger]:
    """What a code of up to 16 bits is where codes are not packed."""
    return np.dtype("<u1" if bits <= 8 else "<u2")


def size(bits: int, ctx: Context) -> int:
    """Bytes of `ctx.count` codes."""
    return (ctx.count * bits + 7) // 8 if ctx.packed else ctx.count * item(bits).itemsize


def item_size(bits: int, ctx: Context) -> int:
    return 1 if ctx.packed else item(bits).itemsize


def pack(codes: Array, bits: int, ctx: Context) -> Array:
    return kernels.pack_bits(codes, bits) if ctx.packed else codes.astype(item(bits))


def unpack(data: memoryview, bits: int, ctx: Context) -> Array:
    """The codes, uint32; `ValueError` if there are not `ctx.count` of them."""
    if len(data) != size(bits, ctx):
        raise ValueError(f"{ctx.count} codes of {bits} bits are not {len(data)} bytes")
    return kernels.unpack_bits(array(data), bits, ctx.count) if ctx.packed else array(data, item(bits).str).astype("u4")
