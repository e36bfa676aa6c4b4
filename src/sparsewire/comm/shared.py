"""Memory that ranks of one machine share: they add up parts of arrays without sending them.

The memory has two halves. A turn: every rank writes into its own place of one half, all meet in a barrier, every rank
reads what it needs; the next turn takes the other half. Who comes to the barrier of turn t + 1 has read all of turn t,
so its half is free in turn t + 2: one barrier each is enough.

The file has no name any more once all ranks have it open: nothing is left behind, however they end. Its pages are
allocated at once, as writing to memory that is not there would kill the process.
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

from ..errors import CommMismatch
from .base import Array, Bytes, Communicator

FOLDER = Path("/dev/shm")
FIRST, MOST = 2**20, 2**26  # bytes of a half: at first, and at most; more where a pair of ranks had less than LEAST
LEAST = 2**15
HEAD = 64  # bytes before each rank's place: what it is about to write

Range = tuple[int, int]
Run = tuple[int, int, int]  # of the array: from, to; and the place in a window


@dataclass(frozen=True)
class Cuts:
    """An array's parts, one for each rank, each of them some ranges of it; and how they fill windows."""

    ranges: tuple[tuple[Range, ...], ...]
    digest: int  # of what the array is: ranks that mean different ones are told
    _windows: dict[int, list[list[list[Run]]]] = field(default_factory=dict, compare=False)

    def size(self, part: int) -> int:
        return sum(stop - start for start, stop in self.ranges[part])

    def windows(self, width: int) -> list[list[list[Run]]]:
        """Of each turn, each part's runs; a window takes `width` elements of a part."""
        if width not in self._windows:
            parts = [list(_windows(ranges, width)) for ranges in self.ranges]
            turns = max(1, *map(len, parts))
            self._windows[width] = [[part[turn] if turn < len(part) else [] for part in parts] for turn in range(turns)]
        return self._windows[width]


def _windows(ranges: Sequence[Range], width: int) -> Iterator[list[Run]]:
    """The ranges one after another, cut every `width` elements."""
    window: list[Run] = []
    at = 0
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + width - at)
            window.append((start, end, at))
            at, start = at + end - start, end
            if at == width:
                yield window
                window, at = [], 0
    if window:
        yield window


class SharedMemory:
    """The memory of a machine's ranks. `comm` is theirs, and only for their barriers."""

    def __init__(self, comm: Communicator, memory: mmap.mmap) -> None:
        self.bytes_written = 0
        self._comm, self._turn = comm, 0
        self._most = MOST
        self._use(memory)

    def _use(self, memory: mmap.mmap) -> None:
        self._halves: Bytes = np.frombuffer(memory, np.uint8).reshape(2, self._comm.size, -1)

    @classmethod
    def open(cls, comm: Communicator) -> SharedMemory | None:
        """Every rank calls it; None on all of them if any cannot have it."""
        memory = _allocate(comm, FIRST)
        return None if memory is None else cls(comm, memory)

    def _grow(self, nbytes: int) -> None:
        """Makes room for an array in one turn, up to a limit: every turn is a barrier. Every rank does the same."""
        wanted = min(self._most, nbytes * self._comm.size)
        while 2 * self._halves[0].nbytes <= wanted:
            memory = _allocate(self._comm, wanted)
            if memory is not None:
                self._use(memory)
                break
            wanted = self._most = wanted // 2

    def add_up(self, array: Array, cuts: Cuts, out: Array) -> None:
        """This rank's part of the sum over the ranks: its own numbers and then the others', in their order."""
        self._grow(array.nbytes)
        size, rank = self._comm.size, self._comm.rank
        width = (self._halves.shape[2] - HEAD) // size // array.itemsize
        done = 0
        for runs in cuts.windows(width):
            half = self._numbers(array, (size, size, width))
            for part in range(size):
                if part != rank:
                    _copy(array, half[rank, part], runs[part])
                    self.bytes_written += _count(runs[part]) * array.itemsize
            mine = out[done : (done := done + _count(runs[rank]))]
            _copy(array, mine, runs[rank])
            self._meet(cuts)
            with np.errstate(all="ignore"):
                for other in range(size):
                    if other != rank:
                        mine += half[other, rank, : mine.size]

    def spread(self, mine: Array, cuts: Cuts, array: Array) -> None:
        """Puts every rank's part into its places in the array."""
        size, rank = self._comm.size, self._comm.rank
        width = (self._halves.shape[2] - HEAD) // array.itemsize
        done = 0
        for runs in cuts.windows(width):
            half, count = self._numbers(array, (size, width)), _count(runs[rank])
            half[rank, :count] = mine[done : done + count]
            _place(mine[done : done + count], array, runs[rank])
            self.bytes_written, done = self.bytes_written + count * array.itemsize, done + count
            self._meet(cuts)
            for other in range(size):
                if other != rank:
                    _place(half[other], array, runs[other])

    def _numbers(self, like: Array, shape: tuple[int, ...]) -> Array:
        """This turn's half as numbers, without the heads."""
        half = self._halves[self._turn % 2, :, HEAD:].view(like.dtype)
        return half[:, : int(np.prod(shape[1:]))].reshape(shape)

    def _meet(self, cuts: Cuts) -> None:
        heads = self._halves[self._turn % 2, :, :8].view(np.uint64)[:, 0]
        heads[self._comm.rank] = cuts.digest
        self._turn += 1
        self._comm.barrier()
        strangers = np.flatnonzero(heads != cuts.digest)
        if strangers.size:
            raise CommMismatch(f"ranks {strangers.tolist()} of this machine brought other tensors")


def _copy(array: Array, window: Array, runs: Sequence[Run]) -> None:
    for start, stop, at in runs:
        window[at : at + stop - start] = array[start:stop]


def _place(window: Array, array: Array, runs: Sequence[Run]) -> None:
    for start, stop, at in runs:
        array[start:stop] = window[at : at + stop - start]


def _count(runs: Sequence[Run]) -> int:
    return sum(stop - start for start, stop, _ in runs)


def _allocate(comm: Communicator, half: int) -> mmap.mmap | None:
    """Two halves of about this size, on all ranks or on none."""
    place = HEAD + max(LEAST, half // comm.size**2 // HEAD * HEAD) * comm.size
    path = _make(2 * comm.size * place) if comm.rank == 0 else None
    try:
        name = comm.broadcast(os.fsencode(path or ""))
        memory = _map(Path(os.fsdecode(name)), 2 * comm.size * place) if name else None
        everyone = comm.all_gather(b"ok" if memory is not None else b"", "shared memory")
    finally:
        if path is not None:
            path.unlink()
    return memory if all(map(len, everyone)) else None


def _make(size: int) -> Path | None:
    """A new file of this many bytes that are really there; None where that cannot be had."""
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
