"""Operations between two ranks, for engines that have no other operation than a gather."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from sparsewire.errors import CommMismatch

from .buffers import Bytes, BytesLike, as_bytes
from .slots import SlotGather

TAG_BYTES = 8

GatherPair = Callable[[str, Sequence[int], Bytes, Bytes], None]  # call, both ranks, own bytes, the bytes of both


def peers_by_round(rank: int, size: int) -> Iterator[int]:
    """All other ranks, in an order in which all ranks can meet in pairs without waiting for a third.

    In round r the ranks a and b meet for which a + b = r modulo the size.
    """
    for number in range(size):
        peer = (number - rank) % size
        if peer != rank:
            yield peer


class Mailbox:
    """The messages between this rank and one other, which gathers of the two ranks move.

    Each gather brings a message from a rank that sends, and nothing from a rank that waits to receive. A message that
    arrives while this rank sends, or with another tag than this rank waits for, is kept until `receive` asks for it.
    """

    def __init__(self, rank: int, peer: int, gather: GatherPair) -> None:
        self._ranks, self._peer = sorted((rank, peer)), int(peer > rank)
        self._gather = gather
        self._arrived: defaultdict[int, deque[bytes]] = defaultdict(deque)

    def send(self, data: BytesLike, tag: int) -> None:
        header = tag.to_bytes(TAG_BYTES, "little", signed=True)
        self._exchange("send", np.concatenate([as_bytes(header), as_bytes(data)]))

    def receive(self, tag: int) -> bytes:
        while not self._arrived[tag]:
            if not self._exchange("recv", as_bytes(b"")):
                raise CommMismatch(f"recv(tag={tag}): the other rank also waits to receive; one of the two must send")
        return self._arrived[tag].popleft()

    def _exchange(self, call: str, mine: Bytes) -> bool:
        """Whether the other rank had a message."""
        # A new gather for each message: one large message leaves no large slots behind.
        gather = SlotGather(self._ranks, partial(self._gather, call, self._ranks), call)
        message = bytes(gather(mine, "message")[self._peer])
        if message:
            tag = int.from_bytes(message[:TAG_BYTES], "little", signed=True)
            self._arrived[tag].append(message[TAG_BYTES:])
        return bool(message)
