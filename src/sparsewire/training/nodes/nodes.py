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

from sparsewire import kernels
from sparsewire.codecs.contract import ExchangeCodec
from sparsewire.codecs.scheme import scheme
from sparsewire.comm import Communicator
from sparsewire.comm.shared_memory import Partition, SharedMemory
from sparsewire.core.sparse import Sparse
from sparsewire.exchange import Clock, ExchangeContext, Piece
from sparsewire.kernels import Array, index_dtype

from ..layout import Buffer, Slice
from ..places import zeros_like
from ..schedule import Settings
from .grid import Grid
from .messages import Adder, Messages

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

    @property
    def takes_devices(self) -> bool:
        """Whether gradients on devices stay there."""
        return True

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
        self._on_host: Adder = self.memory or Messages(self.inside)
        self.on_device: Adder | None = None  # of gradients on devices; None: they are copied to the host whole
        self._parts: dict[tuple[tuple[Slice, ...], str, bool], _BufferPart] = {}

    @property
    def takes_devices(self) -> bool:
        return self.on_device is not None

    def take(self, buffers: Sequence[Buffer], clock: Clock) -> Sequence[Buffer]:
        with clock("inside"):
            return [self._take(buffer, clock) for buffer in buffers]

    def _take(self, buffer: Buffer, clock: Clock) -> Buffer:
        whole = buffer.read()
        part = self._part(buffer.slices, whole)
        self._adder(whole).reduce_scatter(whole, part.cuts, part.numbers)
        with np.errstate(all="ignore"):
            part.numbers /= part.numbers.dtype.type(self.inside.size)

        def write(means: Array) -> None:
            with clock("inside"):
                whole = buffer.read()
                self._adder(whole).all_gather(means, part.cuts, whole)
                buffer.write(whole)

        return Buffer(part.slices, buffer.dtype, lambda: part.numbers, write)

    def _adder(self, array: Array) -> Adder:
        if kernels.on_host(array):
            return self._on_host
        assert self.on_device is not None
        return self.on_device

    def _part(self, slices: tuple[Slice, ...], whole: Array) -> _BufferPart:
        """Kept from step to step, until one of its parameters comes in another buffer."""
        key = slices, whole.dtype.str, kernels.on_host(whole)
        if key not in self._parts:
            names = {item.name for item in slices}
            self._parts = {other: kept for other, kept in self._parts.items() if names.isdisjoint(kept.names)}
            self._parts[key] = _BufferPart(slices, self.grid, self.inside.rank, whole)
        return self._parts[key]

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
            "on_device": self.takes_devices,
            "bytes_between": self.across.traffic().bytes_sent,
            "bytes_inside": self.inside.traffic().bytes_sent + written,
        }}  # fmt: skip


class _BufferPart:
    """A rank's part of a buffer: the parts of its parameters, side by side."""

    def __init__(self, slices: tuple[Slice, ...], grid: Grid, part: int, whole: Array) -> None:
        bounds = [[item.start + at for at in grid.bounds(item.size)] for item in slices]
        ranges = tuple(tuple((at[j], at[j + 1]) for at in bounds) for j in range(grid.parts))
        text = "\n".join(f"{item.name} {item.start} {item.stop}" for item in slices)
        self.cuts = Partition(ranges, crc32(f"{whole.dtype.str}\n{text}".encode()))
        self.names = {item.name for item in slices}
        self.numbers = zeros_like(whole, self.cuts.size(part))
        parts, at = [], 0
        for item, (start, stop) in zip(slices, ranges[part], strict=True):
            parts.append(Slice(item.name, at, (at := at + stop - start), item.size, start - item.start))
        self.slices = tuple(parts)
