"""The kernels in NumPy: readable, the oracle for the native ones, and what runs where there is no compiler.

The contract, for both:
- dense arrays are one-dimensional, contiguous float32 or float64; magnitudes are compared as integers (the bits of
  |x|), so that NaN is larger than inf and both are larger than any number;
- index arrays are ascending and unique, int32 where every index fits and int64 otherwise (`index_dtype`);
- bits are packed least significant first, and the bits after the last are zero;
- data that cannot have come from the encoder raises `ValueError`, before more memory is taken than `count` asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
U64 = np.uint64

GOLDEN = 0x9E3779B97F4A7C15
HUFFMAN_MAX_LENGTH = 12


def index_dtype(numel: int) -> np.dtype[np.signedinteger]:
    return np.dtype(np.int32 if numel <= 2**31 else np.int64)


def magnitude_bits(x: Array) -> Array:
    """|x| as an unsigned integer that orders like the magnitude."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return x.view(unsigned) & unsigned.type(2 ** (8 * x.dtype.itemsize - 1) - 1)


# --- dense-sized: selection and accumulation ---------------------------------------------------------------------


def topk(x: Array, k: int, threads: int = 1) -> tuple[Array, Array]:
    """The k entries of largest magnitude, ties to the lowest index: (indices ascending, values)."""
    if not 0 <= k <= x.size:
        raise ValueError(f"k must lie in 0…{x.size}, not {k}")
    if k == 0:
        return np.empty(0, index_dtype(x.size)), np.empty(0, x.dtype)
    bits = magnitude_bits(x)
    edge = np.partition(bits, x.size - k)[x.size - k]
    chosen = bits > edge
    ties = np.flatnonzero(bits == edge)[: k - np.count_nonzero(chosen)]
    chosen[ties] = True
    return _gather(x, np.flatnonzero(chosen))


def topk_add(residual: Array, x: Array, k: int, threads: int = 1) -> tuple[Array, Array]:
    """`topk` of residual + x, which goes into the residual, except where it is not finite: there the old one stays."""
    chosen = topk_sum(residual, x, k)
    add_finite(residual, x)
    return chosen


def add_finite(residual: Array, x: Array) -> None:
    """`residual += x`, except where the sum is not finite: there the residual stays as it was."""
    with np.errstate(all="ignore"):
        total = residual + x
    np.copyto(residual, total, where=np.isfinite(total))


def topk_sum(residual: Array, x: Array, k: int, threads: int = 1) -> tuple[Array, Array]:
    """`topk` of residual + x, which both stay as they are."""
    with np.errstate(all="ignore"):
        return topk(residual + x, k)


def threshold(x: Array, low: float, threads: int = 1) -> tuple[Array, Array]:
    """All entries with |x| ≥ low, NaN included: (indices ascending, values)."""
    if not low >= 0:
        raise ValueError(f"a threshold is a number ≥ 0, not {low}")
    with np.errstate(over="ignore"):
        edge = magnitude_bits(np.array([low]).astype(x.dtype))[0]
    return _gather(x, np.flatnonzero(magnitude_bits(x) >= edge))


def all_finite(x: Array, threads: int = 1) -> bool:
    """Whether no entry is NaN or infinite."""
    return bool(np.isfinite(x).all())


def scatter(out: Array, indices: Array, values: Array) -> None:
    """out[indices] = values; the indices ascend and lie within out."""
    if indices.size != values.size or (indices.size and not 0 <= indices[0] <= indices[-1] < out.size):
        raise ValueError("the entries do not fit the output")
    if not (indices[1:] > indices[:-1]).all():
        raise ValueError("the indices do not ascend")
    out[indices] = values


def accumulate(out: Array, parts: Sequence[tuple[Array, Array]], scale: float, threads: int = 1) -> None:
    """out = Σ over the parts, in their order, of scale × values at indices; everything else is zero."""
    for indices, values in parts:
        if indices.size != values.size or (indices.size and not 0 <= indices[0] <= indices[-1] < out.size):
            raise ValueError("a part does not fit the output")
        if not (indices[1:] > indices[:-1]).all():
            raise ValueError("a part's indices do not ascend")
    out.fill(0)
    for indices, values in parts:
        out[indices] += values * out.dtype.type(scale)


def _gather(x: Array, positions: Array) -> tuple[Array, Array]:
    return positions.astype(index_dtype(x.size)), x[positions]


# --- bits --------------------------------------------------------------------------------------------------------


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


# --- gaps and runs -----------------------------------------------------------------------------------------------


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


# --- Rice --------------------------------------------------------------------------------------------------------


def rice_encode(values: Array, block: int) -> tuple[Bytes, Bytes, Bytes]:
    """Rice codes of uint32 or uint64 values with a parameter per block: (parameters, low bits, unary bits).

    A block's parameter b is the smallest for which Σ ⌈(v >> b) / 2⌉ ≤ n, its number of entries: the cheapest, as
    that sum is what one more low bit would save. The low stream holds the b low bits of each value, the unary
    stream v >> b zeros and a one.
    """
    parameters = np.array(
        [_rice_parameter(values[i : i + block]) for i in range(0, values.size, block)], dtype=np.uint8
    )
    widths = _spread(parameters, block, values.size)
    low = pack_uneven(values, widths)
    ends = np.cumsum((values >> widths.astype(values.dtype)).astype(np.int64) + 1) - 1
    return parameters, low, bitmap(ends, int(ends[-1]) + 1 if ends.size else 0)


def rice_decode(parameters: Bytes, low: Bytes, unary: Bytes, count: int, block: int, wide: bool) -> Array:
    """Inverse of `rice_encode`; uint64 if `wide`, else uint32 (a value that does not fit is an error)."""
    dtype, limit = (np.uint64, 64) if wide else (np.uint32, 32)
    if block < 1 or parameters.size != -(-count // block) or (parameters.size and parameters.max() >= limit):
        raise ValueError("the Rice parameters do not fit")
    widths = _spread(parameters, block, count)
    ends = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    if ends.size != count or unary.size != ((int(ends[-1]) + 8) // 8 if count else 0):
        raise ValueError("the Rice unary stream does not fit")
    quotients = np.diff(ends, prepend=-1).astype(np.uint64) - U64(1)
    if count and (quotients >> (U64(limit) - widths)).any():
        raise ValueError("a Rice code is too large")
    return (quotients << widths.astype(U64) | unpack_uneven(low, widths)).astype(dtype)


def _spread(per_block: Array, block: int, count: int) -> Array:
    """Each block's number for each of its entries, `count` in all."""
    return np.repeat(per_block, min(block, max(count, 1)))[:count]


def _rice_parameter(values: Array) -> int:
    b = 0
    while sum((v >> b) + 1 >> 1 for v in values.tolist()) > values.size:
        b += 1
    return b


def pack_deltas(numbers: Bytes) -> Bytes:
    """Numbers below 64 as changes against the one before (the first: against 0), folded to 0, −1, 1, … → 0, 1, 2, …,
    each that many zeros and a one: what Rice parameters cost where they hardly change."""
    change = np.diff(numbers.astype(np.int64), prepend=0)
    ends = np.cumsum(np.where(change < 0, -2 * change - 1, 2 * change) + 1) - 1
    return bitmap(ends, int(ends[-1]) + 1 if ends.size else 0)


def unpack_deltas(data: Bytes, count: int) -> Bytes:
    ends = np.flatnonzero(np.unpackbits(data, bitorder="little"))
    if ends.size != count or data.size != ((int(ends[-1]) + 8) // 8 if count else 0):
        raise ValueError("the changes do not fit their count")
    folded = np.diff(ends, prepend=-1) - 1
    numbers = np.cumsum(np.where(folded & 1, -(folded + 1) // 2, folded // 2))
    if count and (numbers.min() < 0 or numbers.max() > 63):
        raise ValueError("a number is not in 0…63")
    return numbers.astype(np.uint8)


# --- Elias-Fano --------------------------------------------------------------------------------------------------


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


# --- Huffman -----------------------------------------------------------------------------------------------------


def huffman_codes(lengths: Bytes) -> NDArray[np.uint32]:
    """Canonical codes, shorter first, then by symbol; bit-reversed, as bits are packed from the least significant.

    The lengths must fill the code space exactly; a single symbol of length 1 is allowed too.
    """
    used = np.flatnonzero(lengths)
    space = int(np.sum(2 ** (HUFFMAN_MAX_LENGTH - lengths[used].astype(np.int64))))
    if lengths.size > 256 or (used.size and lengths.max() > HUFFMAN_MAX_LENGTH):
        raise ValueError("Huffman lengths are out of range")
    if space != 2**HUFFMAN_MAX_LENGTH and not (used.size == 1 and lengths[used[0]] == 1) and used.size:
        raise ValueError("Huffman lengths do not form a code")
    codes, code, last = np.zeros(lengths.size, np.uint32), 0, 0
    for symbol in sorted(used.tolist(), key=lambda s: (lengths[s], s)):
        code <<= int(lengths[symbol]) - last
        last = int(lengths[symbol])
        codes[symbol] = int(f"{code:0{last}b}"[::-1], 2)
        code += 1
    return codes


def huffman_encode(symbols: Bytes, lengths: Bytes) -> Bytes:
    """The codes of the symbols, one after the other. Every symbol must have a length."""
    codes = huffman_codes(lengths)
    if symbols.size and (symbols.max() >= lengths.size or not lengths[symbols].all()):
        raise ValueError("a symbol has no Huffman code")
    return pack_uneven(codes[symbols], lengths[symbols])


def huffman_decode(data: Bytes, lengths: Bytes, count: int) -> Bytes:
    codes = huffman_codes(lengths)
    symbol_of = {(int(n), int(c)): s for s, (n, c) in enumerate(zip(lengths, codes, strict=True)) if n}
    bits = np.unpackbits(data, bitorder="little").tolist()
    if count > len(bits):
        raise ValueError("the Huffman stream is too short")
    out, position = np.empty(count, np.uint8), 0
    for i in range(count):
        code = length = 0
        while (length, code) not in symbol_of:
            if position >= len(bits) or length == HUFFMAN_MAX_LENGTH:
                raise ValueError("the Huffman stream is too short or holds an unknown code")
            code |= bits[position] << length
            length, position = length + 1, position + 1
        out[i] = symbol_of[length, code]
    if data.size != (position + 7) // 8:
        raise ValueError("the Huffman stream is too long")
    return out


# --- randomness and quantization ---------------------------------------------------------------------------------


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finalizer, element by element."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def random_bits(key: int, start: int, count: int) -> NDArray[np.uint64]:
    """64 random bits for each counter start … start + count − 1: mix64(key + (counter + 1)·golden)."""
    counters = np.arange(count, dtype=U64) + U64((start + 1) % 2**64)
    return mix64(counters * U64(GOLDEN) + U64(key))


def permute(ids: NDArray[np.uint64], numel: int, key: int) -> NDArray[np.uint64]:
    """A keyed bijection of 0 … numel − 1: four Feistel rounds on 2w bits, walked until the result is below numel."""
    if ids.size and int(ids.max()) >= numel:
        raise ValueError("an id is outside the permutation")
    half = max(1, ((numel - 1).bit_length() + 1) // 2)
    mask, keys = U64(2**half - 1), random_bits(key, 0, 4)
    out, todo = ids.astype(U64), np.arange(ids.size)
    while todo.size:
        left, right = out[todo] >> U64(half), out[todo] & mask
        for round_key in keys:
            left, right = right, left ^ (mix64(right + round_key) & mask)
        out[todo] = left << U64(half) | right
        todo = todo[out[todo] >= U64(numel)]
    return out


def quantize(values: Array, bits: int, bucket: int, key: int) -> tuple[NDArray[np.uint32], Array]:
    """Stochastic rounding to levels −s … s of each bucket's largest finite magnitude, s = 2^(bits−1) − 1.

    A code is level + s; the one code left over, 2^bits − 1, marks a value that is not finite. An entry's random
    number comes from the top 24 bits of `random_bits` at its position. Returns (codes, norms).
    """
    if not (1 <= bits <= 32 and bucket >= 1):
        raise ValueError("bits lie in 1…32, a bucket has at least one entry")
    kind, levels = values.dtype.type, 2 ** (bits - 1) - 1
    finite = np.isfinite(values)
    magnitude = np.where(finite, np.abs(values), kind(0))
    starts = np.arange(0, values.size, bucket)
    norms = np.maximum.reduceat(magnitude, starts) if values.size else np.empty(0, values.dtype)
    spread = _spread(norms, bucket, values.size)
    noise = (random_bits(key, 0, values.size) >> U64(40)).astype(values.dtype) * kind(2.0**-24)
    scaled = magnitude / np.where(spread > 0, spread, kind(1)) * kind(levels)
    level = np.minimum(np.floor(scaled + noise), kind(levels)).astype(np.int64)
    codes = np.where(np.signbit(values), -level, level) + levels
    return np.where(finite, codes, 2**bits - 1).astype(np.uint32), norms


def dequantize(codes: NDArray[np.uint32], norms: Array, bits: int, bucket: int) -> Array:
    """norm × (level / s), NaN for the code that marks a value that was not finite."""
    levels = 2 ** (bits - 1) - 1
    if bucket < 1 or norms.size != -(-codes.size // bucket) or (codes.size and int(codes.max()) >= 2**bits):
        raise ValueError("codes and norms do not fit")
    kind = norms.dtype.type
    ratio = (codes.astype(np.int64) - levels).astype(norms.dtype) / kind(levels)
    with np.errstate(over="ignore"):
        values = _spread(norms, bucket, codes.size) * ratio
    return np.where(codes == 2**bits - 1, kind(np.nan), values)
