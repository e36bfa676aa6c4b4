"""The size of a Bloom filter for a false-positive rate. Only senders compute it; a section holds the result."""

from __future__ import annotations

import functools
import math

import numpy as np

from sparsewire.kernels import Array

WORDS = range(4, 9)  # 32-bit words of half a block: more choices than 8 come closer to the rate with few blocks
FEW_BLOCKS = 300


def classic_size(count: int, fpr: float) -> tuple[int, int]:
    """(bits, hashes) by the textbook: −n·ln ε/(ln 2)² and −log2 ε.

    >>> classic_size(1000, 0.001)
    (14378, 10)
    """
    return math.ceil(-count * math.log(fpr) / math.log(2) ** 2), max(1, round(-math.log2(fpr)))


@functools.lru_cache(maxsize=1024)
def blocked_size(count: int, fpr: float) -> tuple[int, int, int]:
    """(bits, hashes, words): the smallest blocked filter whose expected rate is at most fpr."""
    ideal = max(2, round(-math.log2(fpr)))
    few = classic_size(count, fpr)[0] < 512 * FEW_BLOCKS
    words = range(1, 9) if count < 64 else WORDS if few else (8,)
    sizes = [
        (64 * word * _blocks(count, fpr, hashes, word), hashes, word)
        for word in words
        for hashes in range(max(2, ideal - 1), min(32, ideal + 1) + 1)
    ]
    return min(sizes)


def _blocks(count: int, fpr: float, hashes: int, words: int) -> int:
    """The fewest blocks that keep to fpr, by bisection."""
    low, high = 0, max(1, classic_size(count, fpr)[0] // (64 * words))
    while blocked_rate(count, high, hashes, words) > fpr:
        low, high = high, high + high // 8 + 1
    while high - low > 1 + high // 4096:
        middle = (low + high) // 2
        above = blocked_rate(count, middle, hashes, words) > fpr
        low, high = (middle, high) if above else (low, middle)
    return high


def blocked_rate(count: int, blocks: int, hashes: int, words: int) -> float:
    """The expected false-positive rate over the numbers of entries that a block may have."""
    loads, chances = _loads(count, blocks)
    first, second = (hashes + 1) // 2, hashes // 2
    return float((chances * _half_rate(loads, first, 32 * words) * _half_rate(loads, second, 32 * words)).sum())


def _loads(count: int, blocks: int) -> tuple[Array, Array]:
    """(n, chance that a block has n entries): binomial, without its far tails."""
    if blocks == 1:
        return np.array([float(count)]), np.ones(1)
    mean = count / blocks
    reach = 9 * math.sqrt(mean) + 9
    loads = np.arange(max(0, int(mean - reach)), min(count, int(mean + reach)) + 1, dtype=np.float64)
    steps = np.log((count - loads[:-1]) / (loads[1:] * (blocks - 1)))
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    chances = np.exp(logs - logs.max())
    return loads, chances / chances.sum()


def _half_rate(loads: Array, hashes: int, bits: int) -> Array:
    """E[(share of bits set)^hashes] after setting loads × hashes random ones of `bits` bits, to the second order."""
    throws = loads * hashes
    clear, both = (1 - 1 / bits) ** throws, (1 - 2 / bits) ** throws
    spread = np.maximum(0.0, clear / bits + (1 - 1 / bits) * both - clear**2)
    share = np.maximum(1 - clear, 1e-12)
    return np.minimum(1.0, share**hashes * (1 + hashes * (hashes - 1) / 2 * spread / share**2))
