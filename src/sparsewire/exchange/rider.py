"""`Rider`: small arrays that are averaged over the ranks and travel with an exchange's messages.

An all_reduce of a few kilobytes costs what its rounds cost, 2 · (ranks − 1) of them, at the end of a step, where
everybody waits. Behind the message of an all_gather the same bytes cost no round, while backward goes on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from sparsewire import kernels
from sparsewire.comm import Communicator
from sparsewire.errors import FrameError
from sparsewire.kernels import Array

from .messages import NEVER_SENT, blaming

CHECKSUM = 4  # bytes
MOST = 2**17  # bytes that all other ranks' arrays may have: with more of them an all_reduce sends less


def fits(numbers: float, ranks: int) -> bool:
    """Whether so many numbers are better gathered than reduced."""
    return 4 * numbers * (ranks - 1) <= MOST


def gather_means(arrays: Sequence[Array], comm: Communicator) -> bool:
    """What no message took along: the same means by an all_gather of their own; whether they are finite."""
    outcomes = [True]
    rider = Rider(arrays, outcomes.append)
    if arrays:
        rider.average(rider.split(comm.all_gather(rider.pack(), "dense"))[1])
    return outcomes[-1]


class Rider:
    """Flat arrays, the same on every rank; their means take their places, and `arrived` hears whether those are
    finite."""

    def __init__(self, arrays: Sequence[Array] = (), arrived: Callable[[bool], None] = lambda finite: None) -> None:
        self._arrays, self._arrived = arrays, arrived
        self.nbytes = sum(array.nbytes for array in arrays) + CHECKSUM * bool(arrays)

    def pack(self) -> bytes:
        numbers = b"".join(array.tobytes() for array in self._arrays)
        return numbers + zlib.crc32(numbers).to_bytes(CHECKSUM, "little") if self._arrays else b""

    def split(self, messages: Sequence[memoryview]) -> tuple[list[memoryview], list[memoryview]]:
        """What the exchange reads of every rank's message, and this one's part; an empty one tells of a failure."""
        if not self.nbytes:
            return list(messages), list(messages)
        ends = [max(0, len(message) - self.nbytes) for message in messages]
        parts = [message[end:] for message, end in zip(messages, ends, strict=True)]
        for rank, part in enumerate(parts):
            with blaming(rank):
                self._check(part)
        return [message[:end] for message, end in zip(messages, ends, strict=True)], parts

    def _check(self, part: memoryview) -> None:
        if not len(part):
            raise FrameError(NEVER_SENT)
        numbers = part[:-CHECKSUM]
        if len(part) != self.nbytes or zlib.crc32(numbers) != int.from_bytes(part[-CHECKSUM:], "little"):
            raise FrameError("what travels dense was damaged on its way")

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
