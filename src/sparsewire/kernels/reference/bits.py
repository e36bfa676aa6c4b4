"""Bits, gaps and runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import U64, Array, Bytes, index_dtype


def pack_bits(values: Array, width: int) -> Bytes:
    """Each uint32 or uint64 value in `width` bits, one after the other."""
    if not 0 <= width <= 8 * values.dtype.itemsize:
        raise ValueError(f"{width} bits do not fit {values.dtype}")
    planes = (values[:, None] >> np.arange(width, dtype=values.dtype)) & values.dtype.type(1)
    return np.packbits(planes.astype(np.uint8), axis=None, bitorder="little")


def unpack_bits(data: Bytes, width: int, count: int) -> Array:
    """`count` values of `width` bits; uint32 up to 32 bits, uint64 beyond."""
    if not 0 <= width <= 64:
        raise ValueError(f"{width} bits is not a width")
    if data.size != (count * width + 7) // 8:
        raise ValueError(f"{count} values of {width} bits are not {data.size} bytes")
    dtype = np.dtype(np.uint32 if width <= 32 else np.uint64)
    if width == 0:
        return np.zeros(count, dtype)
    planes = np.unpackbits(data, count=count * width, bitorder="little").reshape(count, width).astype(dtype)
    shifts: Array = np.arange(width, dtype=dtype)
    return np.bitwise_or.reduce(planes << shifts, axis=1)


def pack_uneven(values: Array, widths: Bytes) -> Bytes:
    """The `widths[i]` low bits of each uint32 or uint64 value, one after the other."""
    if values.size != widths.size or (widths.size and widths.max() > 8 * values.dtype.itemsize):
        raise ValueError("the widths do not fit the values")
    sizes = widths.astype(np.int64)
    owner = np.repeat(np.arange(values.size), sizes)
    shift = (np.arange(owner.size) - (np.cumsum(sizes) - sizes)[owner]).astype(values.dtype)
    return np.packbits(((values[owner] >> shift) & values.dtype.type(1)).astype(np.uint8), bitorder="little")


def unpack_uneven(data: Bytes, widths: Bytes) -> NDArray[np.uint64]:
    """The inverse: values of `widths[i]` bits each."""
    if widths.size and widths.max() > 64:
        raise ValueError("a width is above 64 bits")
    sizes = widths.astype(np.int64)
    total = int(sizes.sum())
    if data.size != (total + 7) // 8:
        raise ValueError(f"{total} bits are not {data.size} bytes")
    owner = np.repeat(np.arange(widths.size), sizes)
    shift = (np.arange(total) - (np.cumsum(sizes) - sizes)[owner]).astype(U64)
    out = np.zeros(widths.size, U64)
    np.bitwise_or.at(out, owner, np.unpackbits(data, count=total, bitorder="little").astype(U64) << shift)
    return out


def bitmap(indices: Array, numel: int) -> Bytes:
    """`numel` bits with a one at each index."""
    if indices.size and not (indices[0] >= 0 and indices[-1] < numel):
        raise ValueError("an index is outside the bitmap")
    flags = np.zeros(numel, np.uint8)
    flags[indices] = 1
    return np.packbits(flags, bitorder="little")


def from_bitmap(data: Bytes, numel: int, count: int) -> Array:
    """The `count` indices whose bits are set."""
    if data.size != (numel + 7) // 8:
        raise ValueError(f"a bitmap of {numel} bits is not {data.size} bytes")
    positions = np.flatnonzero(np.unpackbits(data, bitorder="little"))
    if positions.size != count or (count and positions[-1] >= numel):
        raise ValueError(f"the bitmap does not hold {count} entries below {numel}")
    return positions.astype(index_dtype(numel))


def gaps(indices: Array) -> Array:
    """How many elements lie between each index and the one before it (the first: before it at all), unsigned."""
    return (np.diff(indices, prepend=indices.dtype.type(-1)) - 1).astype(f"u{indices.dtype.itemsize}")


def from_gaps(gaps: Array, numel: int) -> Array:
    """The indices with these gaps, all below numel."""
    if sum(gaps.tolist()) + gaps.size > numel:
        raise ValueError("the gaps leave the tensor")
    return (np.cumsum(gaps.astype(np.int64) + 1) - 1).astype(index_dtype(numel))


def run_lengths(indices: Array) -> tuple[Array, Array]:
    """(zeros before each run of ones, length of each run), both unsigned of the indices' width."""
    unsigned = np.dtype(f"u{indices.dtype.itemsize}")
    first = np.flatnonzero(np.diff(indices, prepend=indices.dtype.type(-2)) != 1) if indices.size else indices
    ends = np.append(first[1:], indices.size) - 1 if indices.size else first
    before = np.append(indices.dtype.type(-1), indices[ends])[:-1] if indices.size else indices
    return (indices[first] - before - 1).astype(unsigned), (ends - first + 1).astype(unsigned)


def from_run_lengths(zeros: Array, ones: Array, numel: int, count: int) -> Array:
    """The `count` indices that the runs describe."""
    if zeros.size != ones.size:
        raise ValueError("runs come in pairs")
    total, position = 0, 0
    for index, (gap, length) in enumerate(zip(zeros.tolist(), ones.tolist(), strict=True)):
        total, position = total + length, position + gap + length
        if length == 0 or (index and gap == 0) or total > count or position > numel:
            raise ValueError("a run is empty or leaves the tensor")
    if total != count:
        raise ValueError(f"the runs hold {total} entries, not {count}")
    sizes = ones.astype(np.int64)
    before = np.cumsum(sizes) - sizes
    starts = np.cumsum(zeros.astype(np.int64)) + before
    return (np.repeat(starts - before, sizes) + np.arange(count)).astype(index_dtype(numel))
