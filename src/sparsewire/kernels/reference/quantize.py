"""Counter-based random numbers, a keyed permutation, and stochastic quantization."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import U64, Array, spread

GOLDEN = 0x9E3779B97F4A7C15


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
    return _walk(ids, numel, random_bits(key, 0, 4))


def unpermute(ids: NDArray[np.uint64], numel: int, key: int) -> NDArray[np.uint64]:
    """`permute` undone: the same rounds backwards, on swapped halves."""
    return _walk(ids, numel, random_bits(key, 0, 4)[::-1], swap=True)


def _walk(ids: NDArray[np.uint64], numel: int, keys: NDArray[np.uint64], swap: bool = False) -> NDArray[np.uint64]:
    if ids.size and int(ids.max()) >= numel:
        raise ValueError("an id is outside the permutation")
    half = max(1, ((numel - 1).bit_length() + 1) // 2)
    mask = U64(2**half - 1)
    out, todo = ids.astype(U64), np.arange(ids.size)
    while todo.size:
        left, right = out[todo] >> U64(half), out[todo] & mask
        left, right = (right, left) if swap else (left, right)
        for round_key in keys:
            left, right = right, left ^ (mix64(right + round_key) & mask)
        left, right = (right, left) if swap else (left, right)
        out[todo] = left << U64(half) | right
        todo = todo[out[todo] >= U64(numel)]
    return out


def quantize(values: Array, bits: int, bucket: int, key: int) -> tuple[NDArray[np.uint32], Array]:
    """Stochastic rounding to levels −s … s of each bucket's largest finite magnitude, s = 2^(bits−1) − 1.

    A code is level + s; the one code left over, 2^bits − 1, marks a non-finite value. An entry's random
    number comes from the top 24 bits of `random_bits` at its position. Returns (codes, norms).
    """
    if not (1 <= bits <= 32 and bucket >= 1):
        raise ValueError("bits lie in 1…32, a bucket has at least one entry")
    kind, levels = values.dtype.type, 2 ** (bits - 1) - 1
    finite = np.isfinite(values)
    magnitude = np.where(finite, np.abs(values), kind(0))
    starts = np.arange(0, values.size, bucket)
    norms = np.maximum.reduceat(magnitude, starts) if values.size else np.empty(0, values.dtype)
    norm = spread(norms, bucket, values.size)
    noise = (random_bits(key, 0, values.size) >> U64(40)).astype(values.dtype) * kind(2.0**-24)
    scaled = magnitude / np.where(norm > 0, norm, kind(1)) * kind(levels)
    level = np.minimum(np.floor(scaled + noise), kind(levels)).astype(np.int64)
    codes = np.where(np.signbit(values), -level, level) + levels
    return np.where(finite, codes, 2**bits - 1).astype(np.uint32), norms


def dequantize(codes: NDArray[np.uint32], norms: Array, bits: int, bucket: int) -> Array:
    """norm × (level / s), NaN for the code that marks a non-finite value."""
    levels = 2 ** (bits - 1) - 1
    if bucket < 1 or norms.size != -(-codes.size // bucket) or (codes.size and int(codes.max()) >= 2**bits):
        raise ValueError("codes and norms do not fit")
    kind = norms.dtype.type
    ratio = (codes.astype(np.int64) - levels).astype(norms.dtype) / kind(levels)
    with np.errstate(over="ignore"):
        values = spread(norms, bucket, codes.size) * ratio
    return np.where(codes == 2**bits - 1, kind(np.nan), values)
