"""`bloom`: DeepReduce's Bloom filter (Xu et al., arXiv 2102.03112): lossy in which entries are sent.

1. The entries go into a filter that takes about 1.44·log2(1/fpr) bits for each.
2. Sender and receiver both ask the filter for every element and get the same positives: the entries, and by chance
   others.
3. A policy says which positives become the frame's entries; the sender sends the dense tensor's values *there*:
   `p0` all of them (no error), `p1` as many as there were entries, at random, `p2` as many, the surest first
   (`kernels.bloom_conflicts`). `naive` is the paper's counter-example: the entries' values on the first positives.

Other than in the paper, `layout=blocked` keeps the bits of an entry within one cache line, with ids permuted first and
the filter made as much larger as uneven blocks need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sparsewire import kernels
from sparsewire.core.binary import Reader, join, varint
from sparsewire.errors import InputError
from sparsewire.kernels import Array, Bytes

from ..contract import Context, IndexCodec
from .bloom_size import blocked_size, classic_size

POLICIES = ("naive", "p0", "p1", "p2")
LAYOUTS = ("classic", "blocked")
MOST_NUMEL, MOST_BITS = 2**33, 2**32


class Filter(NamedTuple):
    """The fields of a section."""

    key: int
    policy: str
    hashes: int
    bits: int
    words: int
    data: Bytes


@dataclass(frozen=True)
class Bloom(IndexCodec):
    """A Bloom filter of the entries; fpr=none is 0.1·k/d, a false positive for every ten entries."""

    id = "bloom"
    wire_id = 8
    lossless = False

    fpr: float | None = None
    policy: str = "p0"
    layout: str = "blocked"

    def check(self) -> None:
        self.expect(self.fpr is None or 1e-9 <= self.fpr <= 0.9, "fpr lies in 1e-9 … 0.9")
        self.expect(self.policy in POLICIES, f"policy is one of {', '.join(POLICIES)}")
        self.expect(self.layout in LAYOUTS, f"layout is one of {', '.join(LAYOUTS)}")

    @property
    def keeps_values(self) -> bool:
        return self.policy == "naive"

    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        if not indices.size:
            return b"", indices
        bits, hashes, words = self._size(int(indices.size), ctx.numel)
        if not _affordable(ctx.numel, bits):
            raise InputError(
                f"a Bloom filter of {indices.size} in {ctx.numel} elements is too costly; use indices=rice"
            )
        # The others may leave out an entry, but non-finite values must arrive.
        policy = self.policy if ctx.finite else "p0"
        data = kernels.bloom_build(indices, ctx.numel, bits, hashes, words, ctx.key)
        filter = Filter(ctx.key, policy, hashes, bits, words, data)
        limit = ctx.numel if policy == "p0" else _most_positives(indices.size, hashes)
        try:
            realised = _choose(filter, _positives(filter, ctx.numel, limit), ctx.numel, indices.size)
        except ValueError:
            raise InputError(f"{self} has over {limit} positives for {indices.size} entries; lower fpr") from None
        return self._write(filter), indices if np.array_equal(realised, indices) else realised

    def decode(self, body: memoryview, ctx: Context) -> Array:
        if not ctx.count:
            if len(body):
                raise ValueError("a Bloom filter without entries")
            return np.empty(0, kernels.index_dtype(ctx.numel))
        filter = self._read(body)
        if not _affordable(ctx.numel, filter.bits):
            raise ValueError("the Bloom filter is too small for so many elements")
        limit = ctx.count if filter.policy == "p0" else _most_positives(ctx.count, filter.hashes)
        positives = _positives(filter, ctx.numel, limit)
        if positives.size < ctx.count:
            raise ValueError("the Bloom filter has fewer positives than entries")
        return _choose(filter, positives, ctx.numel, ctx.count)

    def estimate(self, indices: Array, ctx: Context) -> int:
        if not indices.size:
            return 0
        bits = self._size(int(indices.size), ctx.numel)[0]
        return 12 + bits // 8 if _affordable(ctx.numel, bits) else 2**63

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        if not ctx.count:
            return {}
        size = self._read(body).data.size
        return {"key": 8, "measures": len(body) - 8 - size, "filter": size}

    def _size(self, count: int, numel: int) -> tuple[int, int, int]:
        """(bits, hashes, words) of a filter for so many entries."""
        fpr = max(1e-9, 0.1 * count / numel) if self.fpr is None else self.fpr
        return blocked_size(count, fpr) if self.layout == "blocked" else (*classic_size(count, fpr), 0)

    def _write(self, filter: Filter) -> bytes:
        choice = bytes([POLICIES.index(filter.policy), filter.hashes])
        size = bytes([filter.words]) if filter.words else varint(filter.bits)
        return join(filter.key.to_bytes(8, "little"), choice, size, filter.data)

    def _read(self, body: memoryview) -> Filter:
        reader = Reader(body)
        key, policy, hashes = int.from_bytes(reader.take(8), "little"), reader.byte(), reader.byte()
        if policy >= len(POLICIES) or POLICIES[policy] not in (self.policy, "p0"):
            raise ValueError("the Bloom filter's policy is not the scheme's")
        if self.layout == "classic":
            bits = reader.varint()
            return Filter(key, POLICIES[policy], hashes, bits, 0, reader.rest())
        words = reader.byte()
        if not words:
            raise ValueError("the Bloom filter has blocks without words")
        return Filter(key, POLICIES[policy], hashes, 8 * reader.left, words, reader.rest())


def _affordable(numel: int, bits: int) -> bool:
    """Whether the time to query every element is in proportion to the filter's size: a receiver's guard."""
    return bits <= MOST_BITS and numel <= min(MOST_NUMEL, 2**24 + 2**10 * bits)


def _most_positives(count: int, hashes: int) -> int:
    """How many there may be to choose from: p2 holds a set for every bit of every positive."""
    return (128 * count + 2**18) // max(4, hashes)


def _positives(filter: Filter, numel: int, limit: int) -> Array:
    return kernels.bloom_positives(filter.data, numel, filter.bits, filter.hashes, filter.words, filter.key, limit)


def _choose(filter: Filter, positives: Array, numel: int, count: int) -> Array:
    """The positives that become entries."""
    if filter.policy == "p0":
        return positives
    if filter.policy == "naive":
        return positives[:count]
    if filter.policy == "p1":
        chosen = kernels.permute(np.arange(count, dtype=np.uint64), positives.size, filter.key)
        return positives[np.sort(chosen).astype(np.int64)]
    return kernels.bloom_conflicts(positives, numel, filter.bits, filter.hashes, filter.words, filter.key, count)
