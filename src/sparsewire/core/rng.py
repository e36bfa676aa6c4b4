"""Where randomness comes from: keys for the counter-based hash, the same on every machine and Python."""

from __future__ import annotations

MASK = 2**64 - 1


def mix64(x: int) -> int:
    """splitmix64's finalizer, as `kernels.reference.mix64` on one Python integer."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def derive_key(*parts: int | str) -> int:
    """A 64-bit key from integers and texts, in their order.

    >>> derive_key(0, 0, "w") != derive_key(0, 1, "w")
    True
    """
    key = 0
    for part in parts:
        words = [part & MASK] if isinstance(part, int) else _words(part.encode())
        for word in words:
            key = mix64((key ^ word) + 0x9E3779B97F4A7C15 & MASK)
    return key


def _words(data: bytes) -> list[int]:
    """The text's length, then its bytes in groups of eight."""
    groups = [data[i : i + 8] for i in range(0, len(data), 8)]
    return [len(data), *(int.from_bytes(group, "little") for group in groups)]
