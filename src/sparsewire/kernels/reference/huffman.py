"""Canonical Huffman codes."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from .base import Array, Bytes
from .bits import pack_uneven

HUFFMAN_MAX_LENGTH = 12


def gap_symbols(gaps: Array) -> tuple[Bytes, Bytes]:
    """(symbol, number of extra bits) of each gap: a symbol is the leading bit's place and the bit below it."""
    wide = gaps.astype(np.uint64)
    exponent = _floor_log2(wide)
    below = np.maximum(exponent, 1) - 1
    middle = (wide >> below.astype(np.uint64)) & np.uint64(1)
    symbols = np.where(wide < 2, wide, 2 * exponent.astype(np.uint64) + middle).astype(np.uint8)
    return symbols, np.where(wide < 2, 0, below).astype(np.uint8)


def _floor_log2(x: Array) -> Array:
    """Exact for all uint64, 0 for 0: frexp of a float64 may round up, which the comparison takes back."""
    exponent = np.maximum(np.frexp(x.astype(np.float64))[1] - 1, 0).astype(np.uint64)
    over = (exponent > 63) | ((np.uint64(1) << np.minimum(exponent, np.uint64(63))) > np.maximum(x, np.uint64(1)))
    return exponent - over.astype(np.uint64)


def huffman_lengths(counts: Array) -> Bytes:
    """Code lengths for symbols with these counts: Huffman's, halving the counts until none is too long."""
    if counts.size > 256 or (counts < 0).any() or (counts >= 2**54).any():
        raise ValueError("there are too many symbols, or a count is out of range")
    used = np.flatnonzero(counts)
    lengths = np.zeros(counts.size, np.uint8)
    weights = {int(symbol): int(counts[symbol]) for symbol in used}
    while used.size:
        for symbol, length in _tree_depths(weights).items():
            lengths[symbol] = length
        if lengths.max() <= HUFFMAN_MAX_LENGTH:
            break
        weights = {symbol: (weight + 1) // 2 for symbol, weight in weights.items()}
    return lengths


def _tree_depths(weights: dict[int, int]) -> dict[int, int]:
    if len(weights) == 1:
        return dict.fromkeys(weights, 1)
    heap: list[tuple[int, int, tuple[int, ...]]] = [
        (weight, symbol, (symbol,)) for symbol, weight in sorted(weights.items())
    ]
    heapq.heapify(heap)
    depths = dict.fromkeys(weights, 0)
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in first[2] + second[2]:
            depths[symbol] += 1
        heapq.heappush(heap, (first[0] + second[0], min(first[1], second[1]), first[2] + second[2]))
    return depths


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
