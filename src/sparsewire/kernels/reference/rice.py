"""Rice codes with a parameter per block, and Elias-Fano."""

from __future__ import annotations

import numpy as np

from .base import U64, Array, Bytes, index_dtype, spread
from .bits import bitmap, pack_bits, pack_uneven, unpack_bits, unpack_uneven


def rice_encode(values: Array, block: int) -> tuple[Bytes, Bytes, Bytes]:
    """Rice codes of uint32 or uint64 values with a parameter per block: (parameters, low bits, unary bits).

    A block's parameter b is the smallest for which Σ ⌈(v >> b) / 2⌉ ≤ n, its number of entries: the cheapest, as
    that sum is what one more low bit would save. The low stream holds the b low bits of each value, the unary
    stream v >> b zeros and a one.
    """
    parameters = np.array(
        [_rice_parameter(values[i : i + block]) for i in range(0, values.size, block)], dtype=np.uint8
    )
    widths = spread(parameters, block, values.size)
    low = pack_uneven(values, widths)
    ends = np.cumsum((values >> widths.astype(values.dtype)).astype(np.int64) + 1) - 1
    return parameters, low, bitmap(ends, int(ends[-1]) + 1 if ends.size else 0)


def rice_decode(parameters: Bytes, low: Bytes, unary: Bytes, count: int, block: int, wide: bool) -> Array:
    """Inverse of `rice_encode`; uint64 if `wide`, else uint32 (a value that does not fit is an error)."""
    dtype, limit = (np.uint64, 64) if wide else (np.uint32, 32)
    if block < 1 or parameters.size != -(-count // block) or (parameters.size and parameters.max() >= limit):
        raise ValueError("the Rice parameters do not fit")
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    if ends.size != count or unary.size != ((int(ends[-1]) + 8) // 8 if count else 0):
        raise ValueError("the Rice unary stream does not fit")
    widths = spread(parameters, block, count)
    quotients = np.diff(ends, prepend=-1).astype(np.uint64) - U64(1)
    if count and (quotients >> (U64(limit) - widths)).any():
        raise ValueError("a Rice code is too large")
    return (quotients << widths.astype(U64) | unpack_uneven(low, widths)).astype(dtype)


def _rice_parameter(values: Array) -> int:
    b = 0
    while sum((v >> b) + 1 >> 1 for v in values.tolist()) > values.size:
        b += 1
    return b


def zigzag(numbers: Array) -> Array:
    """0, −1, 1, −2, … → 0, 1, 2, 3, …"""
    return np.where(numbers < 0, -2 * numbers - 1, 2 * numbers)


def unzigzag(codes: Array) -> Array:
    return np.where(codes & 1, -(codes + 1) // 2, codes // 2)


def pack_deltas(numbers: Bytes) -> Bytes:
    """Numbers below 64 as zigzag-coded differences (the first against 0) in unary: that many zeros and a one.

    A number that changes little, such as a Rice parameter, takes a bit or two.
    """
    ends = np.cumsum(zigzag(np.diff(numbers.astype(np.int64), prepend=0)) + 1) - 1
    return bitmap(ends, int(ends[-1]) + 1 if ends.size else 0)


def unpack_deltas(data: Bytes, count: int) -> Bytes:
    ends = np.flatnonzero(np.unpackbits(data, bitorder="little"))
    if ends.size != count or data.size != ((int(ends[-1]) + 8) // 8 if count else 0):
        raise ValueError("the changes do not fit their count")
    codes = np.diff(ends, prepend=-1) - 1
    numbers = np.cumsum(unzigzag(codes))
    if count and (numbers.min() < 0 or numbers.max() > 63):
        raise ValueError("a number is not in 0…63")
    return numbers.astype(np.uint8)


def elias_fano_width(numel: int, count: int) -> int:
    """How many low bits of each index are stored as they are."""
    return max(0, (numel // max(1, count)).bit_length() - 1)


def elias_fano_encode(indices: Array, numel: int) -> tuple[Bytes, Bytes]:
    """(low bits of every index packed, a bitmap with a one at (index >> width) + position)."""
    width = elias_fano_width(numel, indices.size)
    low = pack_bits(indices.astype(U64) & U64(2**width - 1), width)
    high = (indices.astype(np.int64) >> width) + np.arange(indices.size)
    return low, bitmap(high, int(high[-1]) + 1 if high.size else 0)


def elias_fano_decode(low: Bytes, high: Bytes, numel: int, count: int) -> Array:
    width = elias_fano_width(numel, count)
    ends = np.flatnonzero(np.unpackbits(high, bitorder="little"))
    if ends.size != count or high.size != ((int(ends[-1]) + 8) // 8 if count else 0):
        raise ValueError("the Elias-Fano high bits do not fit")
    if count and int(ends[-1]) - (count - 1) > numel - 1 >> width:
        raise ValueError("the Elias-Fano high bits leave the tensor")
    indices = (ends - np.arange(count)) << width | unpack_bits(low, width, count).astype(np.int64)
    if count and (indices[-1] >= numel or (np.diff(indices) <= 0).any()):
        raise ValueError("Elias-Fano indices do not ascend below the number of elements")
    return indices.astype(index_dtype(numel))
