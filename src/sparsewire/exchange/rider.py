"""`Rider`: small arrays that are averaged over the ranks and travel with an exchange's messages.

An all_reduce of a few kilobytes costs what its rounds cost, 2 · (ranks − 1) of them, at the end of a step, where
everybody waits. Behind the message of an all_gather the same bytes cost no round, while backward goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from sparsewire import kernels
from sparsewire.errors import FrameError
from sparsewire.kernels import Array

from .messages import blaming

MOST = 2**17  # bytes that all other ranks' arrays may have: with more of them an all_reduce sends less


class Rider:
    """Flat arrays, the same on every rank; their means take their places, and `arrived` hears whether those are
    finite."""

    def __init__(self, arrays: Sequence[Array] = (), arrived: Callable[[bool], None] = lambda finite: None) -> None:
        self._arrays, self._arrived = arrays, arrived
        self.nbytes = sum(array.nbytes for array in arrays)

    def fits(self, ranks: int) -> bool:
        return self.nbytes * (ranks - 1) <= MOST

    def pack(self) -> bytes:
        return b"".join(array.tobytes() for array in self._arrays)

    def split(self, messages: Sequence[memoryview]) -> tuple[list[memoryview], list[memoryview]]:
        """What the exchange reads of every rank's message, and this one's part; an empty one tells of a failure."""
        ends = [len(message) - self.nbytes for message in messages]
        for rank, (message, end) in enumerate(zip(messages, ends, strict=True)):
            if len(message) and end < 0:
                with blaming(rank):
                    raise FrameError(f"{len(message)} bytes, of which what travels dense alone has {self.nbytes}")
        heads = [message[: max(0, end)] for message, end in zip(messages, ends, strict=True)]
        return heads, [message[max(0, end) :] for message, end in zip(messages, ends, strict=True)]

    def average(self, parts: Sequence[memoryview]) -> None:
        """In rank order, so all ranks get the same bits."""
        start = 0
        for array in self._arrays:
            stop = start + array.nbytes
            rows = [np.frombuffer(part[start:stop], array.dtype) for part in parts]
            with np.errstate(all="ignore"):
                array[:] = reduce(np.add, rows) / array.dtype.type(len(parts))
            start = stop
        self._arrived(all(kernels.all_finite(array) for array in self._arrays))
