"""Bloom filters over 0 … numel − 1.

`words` = 0 is the classic layout: any bit of the filter. Otherwise ids are permuted, a block of 2 × `words` words of 32
bits serves a range of them, and hashes take turns between the halves of the block.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import U64, Array, Bytes, index_dtype
from .quantize import GOLDEN, mix64, permute, random_bits, unpermute

U32 = np.uint32
MOST_IDS, MOST_BITS, MOST_HASHES, MOST_WORDS = 2**33, 2**32, 32, 8
DRAWS = 2**32  # the counter of the first random number that p2 draws with
MULTIPLIERS = (random_bits(0, 0, MOST_HASHES // 2) >> U64(32)).astype(U32) | U32(1)
CHUNK = 2**16


def _mix32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's finalizer, element by element."""
    x = (x ^ (x >> U32(16))) * U32(0x85EBCA6B)
    x = (x ^ (x >> U32(13))) * U32(0xC2B2AE35)
    return x ^ (x >> U32(16))


@dataclass(frozen=True)
class _Filter:
    """A filter's measures, and which bits an id has in it."""

    numel: int
    bits: int
    hashes: int
    words: int
    key: int

    def __post_init__(self) -> None:
        sane = 1 <= self.numel <= MOST_IDS and 1 <= self.bits <= MOST_BITS
        if not (sane and 1 <= self.hashes <= MOST_HASHES and 0 <= self.words <= MOST_WORDS):
            raise ValueError("no Bloom filter has these measures")
        if self.words and (self.bits % (64 * self.words) or self.blocks > self.numel):
            raise ValueError("no Bloom filter has these measures")

    @property
    def blocks(self) -> int:
        return self.bits // (64 * self.words)

    def places(self, ids: Array) -> NDArray[np.uint64]:
        """Ids to where the filter has them."""
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.numel:
            raise ValueError("an id is outside the Bloom filter")
        return permute(ids.astype(U64), self.numel, self.key) if self.words else ids.astype(U64)

    def ids(self, places: NDArray[np.uint64]) -> Array:
        indices = np.sort(unpermute(places, self.numel, self.key)) if self.words else places
        return indices.astype(index_dtype(self.numel))

    def bit(self, places: NDArray[np.uint64], turn: int) -> NDArray[np.uint64]:
        """Each id's bit by one of the hashes."""
        return self._block_bit(places, turn) if self.words else self._classic_bit(places, turn)

    def _classic_bit(self, ids: NDArray[np.uint64], turn: int) -> NDArray[np.uint64]:
        counters = ids * U64(16) + U64(turn // 2 + 1)
        random = mix64(counters * U64(GOLDEN) + U64(self.key))
        half = random & U64(2**32 - 1) if turn % 2 else random >> U64(32)
        return half * U64(self.bits) >> U64(32)

    def _block_bit(self, places: NDArray[np.uint64], turn: int) -> NDArray[np.uint64]:
        seed = random_bits(self.key, 4, 1) >> U64(32)
        both = _mix32((places ^ seed).astype(U32)) * MULTIPLIERS[turn // 2]
        both ^= both >> U32(16)
        field = (both >> U32(16) if turn % 2 else both & U32(0xFFFF)).astype(U64)
        word = (field * U64(self.words) >> U64(16)) + U64(turn % 2 * self.words)
        block = places * U64(self.blocks) // U64(self.numel)
        return block * U64(64 * self.words) + word * U64(32) + field % U64(32)


def bloom_build(indices: Array, numel: int, bits: int, hashes: int, words: int, key: int) -> Bytes:
    """The filter, `bits` bits, that has these ids."""
    filter = _Filter(numel, bits, hashes, words, key)
    marks, places = np.zeros(bits, np.uint8), filter.places(indices)
    for turn in range(hashes):
        marks[filter.bit(places, turn)] = 1
    return np.packbits(marks, bitorder="little")


def bloom_positives(data: Bytes, numel: int, bits: int, hashes: int, words: int, key: int, limit: int) -> Array:
    """All ids below numel that the filter seems to have, at most `limit` of them."""
    filter = _Filter(numel, bits, hashes, words, key)
    if data.size != -(-bits // 8) or (bits % 8 and data[-1] >> (bits % 8)):
        raise ValueError("the Bloom filter has another length")
    positives, left = [np.empty(0, U64)], limit
    for start in range(0, numel, CHUNK):
        places = np.arange(start, min(numel, start + CHUNK), dtype=U64)
        for turn in range(hashes):
            bit = filter.bit(places, turn)
            places = places[(data[bit >> U64(3)] >> (bit & U64(7)).astype(np.uint8) & 1).astype(bool)]
        positives.append(places)
        left -= places.size
        if left < 0:
            raise ValueError("the Bloom filter has too many positives")
    return filter.ids(np.concatenate(positives))


def bloom_conflicts(positives: Array, numel: int, bits: int, hashes: int, words: int, key: int, count: int) -> Array:
    """`count` of the positives by DeepReduce's policy P2.

    1. Each bit's set: the positives that hash to it. The smaller a set, the surer that it holds an entry.
    2. Sets in ascending size, ties by bit; each gives one that is not yet taken, at random; and again until all are
       taken. An element that is drawn leaves its set, and the last of the set comes in its place.
    """
    filter = _Filter(numel, bits, hashes, words, key)
    if not 0 <= count <= positives.size:
        raise ValueError("there are fewer positives than entries")
    sets, taken, counter = _conflict_sets(filter, positives), np.zeros(positives.size, bool), DRAWS
    left = count
    while left:
        for members in sets:
            fresh = False
            while members and left and not fresh:
                slot = (int(random_bits(key, counter, 1)[0]) >> 32) * len(members) >> 32
                members[slot], members[-1] = members[-1], members[slot]
                which, counter = members.pop(), counter + 1
                fresh = not taken[which]
                taken[which] = True
                left -= fresh
        sets = [members for members in sets if members]
    return positives[taken]


def _conflict_sets(filter: _Filter, positives: Array) -> list[array[int]]:
    places, which = filter.places(positives), np.arange(positives.size, dtype=U64)
    pairs = np.unique(np.concatenate([filter.bit(places, turn) << U64(32) | which for turn in range(filter.hashes)]))
    _, starts, sizes = np.unique(pairs >> U64(32), return_index=True, return_counts=True)
    sets = np.split((pairs & U64(2**32 - 1)).astype(np.uint32), starts[1:])
    return [array("I", sets[i].tobytes()) for i in np.argsort(sizes, kind="stable")]
