"""Machines with several ranks: these average among themselves first, so that one gradient a machine travels.

1. The ranks of a machine add up their gradients, dense: each gets the mean of its part of every parameter.
2. Each compresses its part and exchanges it with the ranks of the same part on the other machines.
3. They share the means of their parts.
To the averager a part is a buffer like any other: reading it is step 1, writing its means step 3.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from sparsewire.codecs.contract import ExchangeCodec
from sparsewire.codecs.scheme import scheme
from sparsewire.comm import Communicator
from sparsewire.comm.shared_memory import Partition, SharedMemory
from sparsewire.core.sparse import Sparse
from sparsewire.exchange import Clock, ExchangeContext, Piece
from sparsewire.kernels import Array, index_dtype

from ..layout import Buffer, Slice
from ..schedule import Settings
from .grid import Grid

AUTO = "auto"
LOSSLESS = scheme("nonzero | indices=best | values=raw | memory=none")
DISJOINT = scheme("nonzero | indices=best | values=raw | memory=none | exchange=allgather(mean=senders)")


def nodes(comm: Communicator, settings: Settings) -> Flat:
    """What `settings.nodes` says of these ranks. Every rank calls it."""
    grid = _grid(comm, settings.nodes, settings.schedule.scheme.transform.width)
    return Flat(comm, grid) if grid.parts == 1 else Nodes(comm, grid)


def _grid(comm: Communicator, ranks: int | str | None, unit: int) -> Grid:
    if ranks != AUTO:
        return Grid.even(comm.size, int(ranks or 1), unit)
    machines: dict[bytes, list[int]] = {}
    for rank, name in enumerate(comm.all_gather(machine_name().encode(), "machine")):
        machines.setdefault(bytes(name), []).append(rank)
    return Grid(tuple(map(tuple, machines.values())), unit)


def kernel_name() -> str:
    """The same for processes that share a kernel, and so its cores: host and boot."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return " ".join(facts)


def machine_name() -> str:
    """The same for processes that share a kernel and its network: host, boot and network namespace."""
    facts = [kernel_name()]
    with suppress(OSError):
        facts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(facts)


class Flat:
    """Every rank for itself: its gradients go to the others as they are."""

    def __init__(self, comm: Communicator, grid: Grid) -> None:
        self.grid, self.across = grid, comm

    def take(self, buffers: Sequence[Buffer], clock: Clock) -> Sequence[Buffer]:
        """What this rank exchanges of the buffers that it was given."""
        return buffers

    def take_sparse(self, name: str, x: Sparse, clock: Clock) -> Sparse:
        """The same of a sparse gradient."""
        return x

    def give_sparse(self, name: str, mean: Sparse, like: Sparse, clock: Clock) -> Sparse:
        """The whole mean of a sparse gradient; of a dense one it comes when the part is written."""
        return mean

    def agree(self, finite: bool, numbers: Sequence[float]) -> tuple[bool, Sequence[float]]:
        """Whether all of the step is finite, not only what this rank has seen; means over the parts of a machine."""
        return finite, numbers

    def stats(self) -> dict[str, Any]:
        return {}


class Nodes(Flat):
    """Ranks that share their machine with others."""

    def __init__(self, comm: Communicator, grid: Grid) -> None:
        machine, part = grid.place(comm.rank)
        super().__init__(comm.split(part), grid)
        self._rank = comm.rank
        self.inside = comm.split(machine)
        self.memory = SharedMemory.open(self.inside)
        self._parts: dict[tuple[tuple[Slice, ...], str], _BufferPart] = {}

    def take(self, buffers: Sequence[Buffer], clock: Clock) -> Sequence[Buffer]:
        with clock("inside"):
            return [self._take(buffer, clock) for buffer in buffers]

    def _take(self, buffer: Buffer, clock: Clock) -> Buffer:
        whole = buffer.read()
        part = self._part(buffer.slices, whole.dtype)
        if self.memory is not None:
            self.memory.reduce_scatter(whole, part.cuts, part.numbers)
        else:
            self._add_up(whole, part)
        with np.errstate(all="ignore"):
            part.numbers /= part.numbers.dtype.type(self.inside.size)

        def write(means: Array) -> None:
            with clock("inside"):
                self._give(buffer, part, means)

        return Buffer(part.slices, buffer.dtype, lambda: part.numbers, write)

    def _add_up(self, whole: Array, part: _BufferPart) -> None:
        """Through the engine, in the same order as in shared memory."""
        parts = [np.concatenate([whole[start:stop] for start, stop in ranges]) for ranges in part.cuts.ranges]
        theirs = self.inside.all_to_all(parts, part.name)
        part.numbers[:] = parts[self.inside.rank]
        with np.errstate(all="ignore"):
            for rank, numbers in enumerate(theirs):
                if rank != self.inside.rank:
                    part.numbers += np.frombuffer(numbers, whole.dtype)

    def _give(self, buffer: Buffer, part: _BufferPart, means: Array) -> None:
        whole = buffer.read()
        if self.memory is not None:
            self.memory.all_gather(means, part.cuts, whole)
        else:
            for ranges, theirs in zip(part.cuts.ranges, self.inside.all_gather(means, part.name), strict=True):
                numbers, at = np.frombuffer(theirs, means.dtype), 0
                for start, stop in ranges:
                    whole[start:stop] = numbers[at : (at := at + stop - start)]
        buffer.write(whole)

    def _part(self, slices: tuple[Slice, ...], dtype: np.dtype[Any]) -> _BufferPart:
        """Kept from step to step, until one of its parameters comes in another buffer."""
        if (slices, dtype.str) not in self._parts:
            names = {item.name for item in slices}
            self._parts = {key: kept for key, kept in self._parts.items() if names.isdisjoint(kept.names)}
            self._parts[slices, dtype.str] = _BufferPart(slices, self.grid, self.inside.rank, dtype)
        return self._parts[slices, dtype.str]

    def take_sparse(self, name: str, x: Sparse, clock: Clock) -> Sparse:
        """The entries are gathered as they are: adding them up needs no dense tensor."""
        mean = self._gather(name, x, LOSSLESS.exchange, clock)
        start, stop = self._entries(x)
        first, last = np.searchsorted(mean.indices, (start, stop))
        indices = (mean.indices[first:last] - start).astype(index_dtype(stop - start))
        values = mean.values[first * x.width : last * x.width]
        return Sparse.trusted(indices, values, ((stop - start) * x.width,), x.dtype, x.width)

    def give_sparse(self, name: str, mean: Sparse, like: Sparse, clock: Clock) -> Sparse:
        indices = (mean.indices.astype(np.int64) + self._entries(like)[0]).astype(index_dtype(like.size))
        return self._gather(name, like.like(indices, mean.work_values), DISJOINT.exchange, clock)

    def _gather(self, name: str, x: Sparse, exchange: ExchangeCodec, clock: Clock) -> Sparse:
        plan = replace(LOSSLESS, exchange=exchange)
        with clock("inside"):
            (outcome,) = ExchangeContext(plan, self.inside).average([Piece(name, x, x.shape, x.dtype)])
        return outcome.mean_sparse()

    def _entries(self, x: Sparse) -> tuple[int, int]:
        return self.grid.range(x.size, self._rank, unit=1)

    def agree(self, finite: bool, numbers: Sequence[float]) -> tuple[bool, Sequence[float]]:
        spoiled, *sums = self.inside.all_reduce(np.array([not finite, *numbers], np.float64)).tolist()
        return not spoiled, [total / self.inside.size for total in sums]

    def stats(self) -> dict[str, Any]:
        written = 0 if self.memory is None else self.memory.bytes_written
        return {"nodes": {
            "machines": self.across.size,
            "ranks": self.inside.size,
            "shared_memory": self.memory is not None,
            "bytes_between": self.across.traffic().bytes_sent,
            "bytes_inside": self.inside.traffic().bytes_sent + written,
        }}  # fmt: skip


class _BufferPart:
    """A rank's part of a buffer: the parts of its parameters, side by side."""

    def __init__(self, slices: tuple[Slice, ...], grid: Grid, part: int, dtype: np.dtype[Any]) -> None:
        bounds = [[item.start + at for at in grid.bounds(item.size)] for item in slices]
        ranges = tuple(tuple((at[j], at[j + 1]) for at in bounds) for j in range(grid.parts))
        text = "\n".join(f"{item.name} {item.start} {item.stop}" for item in slices)
        self.cuts = Partition(ranges, crc32(f"{dtype.str}\n{text}".encode()))
        self.name, self.names = slices[0].name, {item.name for item in slices}
        self.numbers = np.empty(self.cuts.size(part), dtype)
        parts, at = [], 0
        for item, (start, stop) in zip(slices, ranges[part], strict=True):
            parts.append(Slice(item.name, at, (at := at + stop - start), item.size, start - item.start))
        self.slices = tuple(parts)
