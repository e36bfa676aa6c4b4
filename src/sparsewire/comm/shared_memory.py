"""Shared memory in which the ranks of one machine reduce arrays without sending them.

The memory has two halves. In a round every rank writes into its own region of one half, all ranks pass a barrier, and
every rank reads what it needs; the next round takes the other half. A rank that comes to the barrier of round t + 1 has
read all of round t, so that half is free in round t + 2: one barrier each is enough.

The file is unlinked once all ranks have it open: nothing is left behind, however the ranks end. Its pages are
allocated at once, because writing to memory that the machine does not have would kill the process.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sparsewire.errors import CommMismatch

from .base import Communicator
from .buffers import Array, Bytes

FOLDER = Path("/dev/shm")
# Bytes of a half: at first, and at most; more where a pair of ranks would have less than SMALLEST.
INITIAL, LARGEST = 2**20, 2**26
SMALLEST = 2**15
HEADER = 64  # bytes before each rank's region: the digest of the array that it writes

Range = tuple[int, int]
Run = tuple[int, int, int]  # start and stop in the array, and the offset in a window


@dataclass(frozen=True)
class Partition:
    """An array is divided into one part for each rank, and each part is some ranges of the array.

    `digest` identifies the array: ranks that bring different arrays are told.
    """

    ranges: tuple[tuple[Range, ...], ...]
    digest: int
    _windows: dict[int, list[list[list[Run]]]] = field(default_factory=dict, compare=False)

    def size(self, part: int) -> int:
        return sum(stop - start for start, stop in self.ranges[part])

    def windows(self, width: int) -> list[list[list[Run]]]:
        """The runs of every part in each round; a window takes `width` elements of a part."""
        if width not in self._windows:
            parts = [list(_windows(ranges, width)) for ranges in self.ranges]
            rounds = max(1, *map(len, parts))
            self._windows[width] = [[part[i] if i < len(part) else [] for part in parts] for i in range(rounds)]
        return self._windows[width]


def _windows(ranges: Sequence[Range], width: int) -> Iterator[list[Run]]:
    """The ranges one after another, divided every `width` elements."""
    window: list[Run] = []
    offset = 0
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + width - offset)
            window.append((start, end, offset))
            offset, start = offset + end - start, end
            if offset == width:
                yield window
                window, offset = [], 0
    if window:
        yield window


class SharedMemory:
    """The memory that a machine's ranks share. `comm` is the group of these ranks and carries only their barriers."""

    def __init__(self, comm: Communicator, memory: mmap.mmap) -> None:
        self.bytes_written = 0
        self._comm, self._round = comm, 0
        self._largest = LARGEST
        self._use(memory)

    def _use(self, memory: mmap.mmap) -> None:
        self._halves: Bytes = np.frombuffer(memory, np.uint8).reshape(2, self._comm.size, -1)

    @classmethod
    def open(cls, comm: Communicator) -> SharedMemory | None:
        """Shared memory for all ranks, which all call this; None on all of them if any rank cannot have it."""
        memory = _allocate(comm, INITIAL)
        return None if memory is None else cls(comm, memory)

    def _grow(self, nbytes: int) -> None:
        """Makes room for an array in one round, up to a limit: every round is a barrier. Every rank does the same."""
        wanted = min(self._largest, nbytes * self._comm.size)
        while 2 * self._halves[0].nbytes <= wanted:
            memory = _allocate(self._comm, wanted)
            if memory is not None:
                self._use(memory)
                break
            wanted = self._largest = wanted // 2

    def reduce_scatter(self, array: Array, partition: Partition, out: Array) -> None:
        """Writes this rank's part of the sum over the ranks: its own numbers and then the others', in rank order."""
        self._grow(array.nbytes)
        size, rank = self._comm.size, self._comm.rank
        width = (self._halves.shape[2] - HEADER) // size // array.itemsize
        done = 0
        for runs in partition.windows(width):
            half = self._numbers(array, (size, size, width))
            for part in range(size):
                if part != rank:
                    _copy_from(array, half[rank, part], runs[part])
                    self.bytes_written += _count(runs[part]) * array.itemsize
            mine = out[done : (done := done + _count(runs[rank]))]
            _copy_from(array, mine, runs[rank])
            self._publish(partition)
            with np.errstate(all="ignore"):
                for other in range(size):
                    if other != rank:
                        mine += half[other, rank, : mine.size]

    def all_gather(self, mine: Array, partition: Partition, array: Array) -> None:
        """Writes every rank's part to its ranges of the array."""
        size, rank = self._comm.size, self._comm.rank
        width = (self._halves.shape[2] - HEADER) // array.itemsize
        done = 0
        for runs in partition.windows(width):
            half, count = self._numbers(array, (size, width)), _count(runs[rank])
            half[rank, :count] = mine[done : done + count]
            _copy_to(mine[done : done + count], array, runs[rank])
            self.bytes_written, done = self.bytes_written + count * array.itemsize, done + count
            self._publish(partition)
            for other in range(size):
                if other != rank:
                    _copy_to(half[other], array, runs[other])

    def _numbers(self, like: Array, shape: tuple[int, ...]) -> Array:
        """This round's half as numbers, without the headers."""
        half = self._halves[self._round % 2, :, HEADER:].view(like.dtype)
        return half[:, : int(np.prod(shape[1:]))].reshape(shape)

    def _publish(self, partition: Partition) -> None:
        """Lets the other ranks read what this one has written, and waits for theirs."""
        digests = self._halves[self._round % 2, :, :8].view(np.uint64)[:, 0]
        digests[self._comm.rank] = partition.digest
        self._round += 1
        self._comm.barrier()
        others = np.flatnonzero(digests != partition.digest)
        if others.size:
            raise CommMismatch(f"ranks {others.tolist()} of this machine brought other tensors")


def _copy_from(array: Array, window: Array, runs: Sequence[Run]) -> None:
    for start, stop, offset in runs:
        window[offset : offset + stop - start] = array[start:stop]


def _copy_to(window: Array, array: Array, runs: Sequence[Run]) -> None:
    for start, stop, offset in runs:
        array[start:stop] = window[offset : offset + stop - start]


def _count(runs: Sequence[Run]) -> int:
    return sum(stop - start for start, stop, _ in runs)


def _allocate(comm: Communicator, half: int) -> mmap.mmap | None:
    """Memory of two halves of about this size, on all ranks or on none."""
    region = HEADER + max(SMALLEST, half // comm.size**2 // HEADER * HEADER) * comm.size
    path = _make(2 * comm.size * region) if comm.rank == 0 else None
    try:
        name = comm.broadcast(os.fsencode(path or ""))
        memory = _map(Path(os.fsdecode(name)), 2 * comm.size * region) if name else None
        everyone = comm.all_gather(b"ok" if memory is not None else b"", "shared memory")
    finally:
        if path is not None:
            path.unlink()
    return memory if all(map(len, everyone)) else None


def _make(size: int) -> Path | None:
    """A new file whose bytes are all allocated; None where the machine cannot give them."""
    if not (FOLDER.is_dir() and hasattr(os, "posix_fallocate")):
        return None
    path = FOLDER / f"sparsewire-{secrets.token_hex(16)}"
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            os.posix_fallocate(file.fileno(), 0, size)
        return path
    except OSError:
        path.unlink(missing_ok=True)
        return None


def _map(path: Path, size: int) -> mmap.mmap | None:
    with suppress(OSError, ValueError), open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), size)
    return None
