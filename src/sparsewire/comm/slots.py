"""Payloads of unknown length over engines that only move buffers of equal, known length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np

from sparsewire.errors import CommMismatch

from .buffers import Bytes, BytesLike, as_bytes

HEADER = 8
SMALL = 512 - HEADER  # below this a message costs its latency, not its bytes
LENGTH_BITS = 48
LABELS = 2 ** (64 - LENGTH_BITS)
SHRINK_AFTER = 8  # payloads in a row that are clearly smaller than their slot
ROUND_TO = 16  # bytes that capacities are multiples of: with the sixteenth more, padding stays below a seventh

GatherEqual = Callable[[Bytes, Bytes], None]
AllToAllSized = Callable[[Bytes, list[int], Bytes, list[int]], None]


def pack(data: Bytes, capacity: int, label: int = 0) -> tuple[Bytes, Bytes]:
    """A slot with the length and what fits of the payload, and the rest."""
    slot = np.zeros(HEADER + capacity, np.uint8)
    return slot, _fill(slot, data, label)


def length_of(slot: Bytes) -> int:
    """The whole payload's length, from a slot of `pack`."""
    return int(slot[:HEADER].view("<u8")[0]) & ((1 << LENGTH_BITS) - 1)


def label_of(slot: Bytes) -> int:
    """The label that `pack` was given."""
    return int(slot[:HEADER].view("<u8")[0]) >> LENGTH_BITS


def unpack(slot: Bytes, rest: Bytes) -> bytes:
    """The payload that `pack` split."""
    return slot[HEADER : HEADER + length_of(slot)].tobytes() + rest.tobytes()


def _fill(slot: Bytes, data: Bytes, label: int) -> Bytes:
    head = data[: slot.size - HEADER]
    slot[:HEADER].view("<u8")[0] = label << LENGTH_BITS | data.size
    slot[HEADER : HEADER + head.size] = head
    return data[head.size :]


class SlotGather:
    """Uneven all_gather over an even one, in one collective as long as payloads keep about their size.

    1. Each rank fills a slot: 8 bytes of length, then as much of the payload as the channel's capacity takes.
    2. One collective moves the slots; now every rank knows every length.
    3. If some payload did not fit, a second collective moves the rests.
    4. Every rank derives the next capacity from the same lengths, so no rank needs to ask.
    All channels share one pair of buffers, as large as the largest slot: what was gathered holds until the next call.
    Errors name the operation `call` and those of `ranks` that called another.
    """

    def __init__(self, ranks: Sequence[int], gather: GatherEqual, call: str = "all_gather") -> None:
        self._ranks, self._size, self._call = ranks, len(ranks), call
        self._gather = gather
        self._channels: dict[str, _Channel] = {}
        self._buffers = np.empty(0, np.uint8), np.empty(0, np.uint8)

    def __call__(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        if channel not in self._channels:
            self._channels[channel] = _Channel(channel)
        slots = self._channels[channel]
        mine, everyone = self._views(HEADER + slots.capacity)
        rest = _fill(mine, as_bytes(data), slots.label)
        self._gather(mine, everyone.reshape(-1))
        lengths = self._lengths(everyone, slots)
        parts = [row[HEADER : HEADER + n] for row, n in zip(everyone, lengths, strict=True)]
        excess = max(lengths) - slots.capacity
        if excess > 0:
            parts = self._append(parts, rest, lengths, excess)
        slots.adapt(max(lengths))
        return [part.data.toreadonly() for part in parts]

    def _lengths(self, everyone: Bytes, slots: _Channel) -> list[int]:
        headers = np.ascontiguousarray(everyone[:, :HEADER]).view("<u8")[:, 0]
        others = np.flatnonzero(headers >> np.uint64(LENGTH_BITS) != slots.label).tolist()
        if others:
            raise _mismatch(self._call, slots.name, [self._ranks[place] for place in others])
        return [int(header) & ((1 << LENGTH_BITS) - 1) for header in headers]

    def _append(self, heads: list[Bytes], rest: Bytes, lengths: list[int], excess: int) -> list[Bytes]:
        mine, everyone = np.zeros(excess, np.uint8), np.empty((self._size, excess), np.uint8)
        mine[: rest.size] = rest
        self._gather(mine, everyone.reshape(-1))
        tails = (row[: n - head.size] for row, n, head in zip(everyone, lengths, heads, strict=True))
        return [np.concatenate(pair) for pair in zip(heads, tails, strict=True)]

    def _views(self, size: int) -> tuple[Bytes, Bytes]:
        """A slot of this size, and one for each rank; the buffers shrink when no channel needs their size any more."""
        largest = HEADER + max(slots.capacity for slots in self._channels.values())
        if not size <= self._buffers[0].size <= largest:
            self._buffers = np.zeros(largest, np.uint8), np.zeros(self._size * largest, np.uint8)
        mine, everyone = self._buffers
        return mine[:size], everyone[: self._size * size].reshape(self._size, size)

    @property
    def nbytes(self) -> int:
        """What the buffers take."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def clear(self) -> None:
        self._channels.clear()
        self._buffers = np.empty(0, np.uint8), np.empty(0, np.uint8)


class SlotAllToAll:
    """Uneven all_to_all over one that must be told all lengths, in one collective while payloads keep about their size.

    As `SlotGather`, but every pair of ranks has a slot of its own, whose next capacity both ends derive from the length
    that both know. A header also says whether its sender has a payload that did not fit, for whichever rank: so all
    ranks know whether the rests follow.
    """

    def __init__(self, rank: int, size: int, all_to_all: AllToAllSized) -> None:
        self._rank, self._all_to_all = rank, all_to_all
        self._peers = [peer for peer in range(size) if peer != rank]
        self._channels: dict[str, tuple[list[_Channel], list[_Channel]]] = {}

    def __call__(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        mine = [as_bytes(parts[peer]) for peer in self._peers]
        to, of = self._slots(channel)
        overflow = any(part.size > slot.capacity for part, slot in zip(mine, to, strict=True))
        packed = [pack(part, slot.capacity, slot.pair_label | overflow) for part, slot in zip(mine, to, strict=True)]
        slots = self._move([head for head, _ in packed], [HEADER + slot.capacity for slot in of])
        received = [slot[HEADER : HEADER + length_of(slot)] for slot in slots]
        if self._any_overflow(slots, of) or overflow:
            missing = [length_of(slot) - part.size for slot, part in zip(slots, received, strict=True)]
            tails = self._move([rest for _, rest in packed], missing)
            received = [np.concatenate(pair) for pair in zip(received, tails, strict=True)]
        for slot, part in zip([*to, *of], [*mine, *received], strict=True):
            slot.adapt(part.size)
        received.insert(self._rank, as_bytes(parts[self._rank]).copy())
        return [part.data.toreadonly() for part in received]

    def _slots(self, name: str) -> tuple[list[_Channel], list[_Channel]]:
        """The slots to all peers, and those from them."""
        if name not in self._channels:
            self._channels[name] = [_Channel(name) for _ in self._peers], [_Channel(name) for _ in self._peers]
        return self._channels[name]

    def _move(self, parts: list[Bytes], sizes: list[int]) -> list[Bytes]:
        mine, received = np.concatenate([np.empty(0, np.uint8), *parts]), np.empty(sum(sizes), np.uint8)
        self._all_to_all(mine, self._by_rank([part.size for part in parts]), received, self._by_rank(sizes))
        return np.split(received, np.cumsum(sizes)[:-1]) if sizes else []

    def _by_rank(self, sizes: list[int]) -> list[int]:
        return [*sizes[: self._rank], 0, *sizes[self._rank :]]

    def _any_overflow(self, slots: list[Bytes], of: list[_Channel]) -> bool:
        """Whether some other rank has more for any rank than the slot between them takes."""
        labels = [label_of(slot) for slot in slots]
        others = [p for p, label, slot in zip(self._peers, labels, of, strict=True) if label & ~1 != slot.pair_label]
        if others:
            raise _mismatch("all_to_all", of[0].name, others)
        return any(label & 1 for label in labels)

    def clear(self) -> None:
        self._channels.clear()


class _Channel:
    """The size of one channel's slots."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.label = crc32(name.encode()) % LABELS
        self.capacity = 0
        self._small_in_a_row = self._largest_of_these = 0
        self._resize(SMALL)

    @property
    def pair_label(self) -> int:
        """The label in the slots of pairs, whose lowest bit is a flag."""
        return self.label & ~1

    def adapt(self, largest: int) -> None:
        """Grow when a payload did not fit; shrink at once below half, below 7/8 only when it lasts.

        Too small costs one more collective, too large costs padding on every step.
        """
        self._small_in_a_row = self._small_in_a_row + 1 if 8 * largest < 7 * self.capacity else 0
        self._largest_of_these = max(self._largest_of_these, largest) if self._small_in_a_row else 0
        if largest > self.capacity or 2 * largest < self.capacity:
            self._resize(largest)
        elif self._small_in_a_row == SHRINK_AFTER:
            self._resize(self._largest_of_these)

    def _resize(self, largest: int) -> None:
        self._small_in_a_row = self._largest_of_these = 0
        self.capacity = max(SMALL, -(-(largest + largest // 16) // ROUND_TO) * ROUND_TO)


def _mismatch(call: str, channel: str, ranks: list[int]) -> CommMismatch:
    return CommMismatch(f"{call}(channel={channel!r}): ranks {ranks} called something else")
