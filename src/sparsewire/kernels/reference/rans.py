"""Asymmetric numeral systems (Duda, arXiv 1311.2540): symbols at their entropy, to a fraction of a bit.

States of 32 bits, words of 16, frequencies that add up to 4096. Up to 4095 symbols go through one state, more take
turns at four, which keeps a processor busy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .base import Bytes

RANS_BITS = 12
LOWEST = 2**16


def _lanes(count: int) -> int:
    return 4 if count >= 4096 else 1


def _check(frequencies: NDArray[np.uint32]) -> list[int]:
    if frequencies.size > 256 or sum(frequencies.tolist()) != 2**RANS_BITS:
        raise ValueError(f"frequencies do not add up to {2**RANS_BITS}")
    return [int(f) for f in frequencies]


def rans_encode(symbols: Bytes, frequencies: NDArray[np.uint32]) -> Bytes:
    """The states, 4 bytes each, then the words in the order in which a decoder takes them."""
    freq = _check(frequencies)
    first = np.cumsum([0, *freq]).tolist()
    if symbols.size and (int(symbols.max()) >= len(freq) or not frequencies[symbols].all()):
        raise ValueError("a symbol has no frequency")
    states, words = [LOWEST] * _lanes(symbols.size), []
    for i in range(symbols.size - 1, -1, -1):
        symbol, lane = int(symbols[i]), i % len(states)
        x, f = states[lane], freq[symbol]
        if x >= f << 20:
            words.append(x & 0xFFFF)
            x >>= 16
        states[lane] = (x // f << RANS_BITS) + x % f + first[symbol]
    return np.concatenate([np.array(states, "<u4").view(np.uint8), np.array(words[::-1], "<u2").view(np.uint8)])


def rans_decode(data: Bytes, frequencies: NDArray[np.uint32], count: int) -> Bytes:
    """The inverse. `ValueError` unless all states end where encoders start and all words are used."""
    freq = _check(frequencies)
    lanes = _lanes(count)
    rarer = 2**RANS_BITS - max(freq)  # a symbol takes at least rarer/4096 bits: what `count` may be, before memory
    if count < 0 or data.size < 4 * lanes or data.size % 2 or count * rarer > (8 * data.size + 64) * 2**RANS_BITS:
        raise ValueError("the rANS stream is too short")
    states = data[: 4 * lanes].copy().view("<u4").tolist()
    words = data[4 * lanes :].copy().view("<u2").tolist()
    if min(states) < LOWEST:
        raise ValueError("a rANS state is too small")
    first = np.cumsum([0, *freq]).tolist()
    owner = np.repeat(np.arange(len(freq)), freq).tolist()
    out, at = np.empty(count, np.uint8), 0
    for i in range(count):
        x = states[i % lanes]
        slot = x & 4095
        symbol = out[i] = owner[slot]
        x = freq[symbol] * (x >> RANS_BITS) + slot - first[symbol]
        if x < LOWEST:
            if at == len(words):
                raise ValueError("the rANS stream is too short")
            x, at = x << 16 | words[at], at + 1
        states[i % lanes] = x
    if at != len(words) or any(x != LOWEST for x in states):
        raise ValueError("the rANS stream does not end where it should")
    return out
