"""The model's own engine, within machines with several ranks and between them, for gradients on devices.

The ranks of a machine send each other their numbers of each part, and every rank adds up its own part: in the order of
shared memory and in the work dtype, so that the bits are those of the host's path whatever the engine is. An engine's
own reduce_scatter would move as many bytes, add in an order of its own, and round bfloat16 at every addition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparsewire.comm.groups import new_part
from sparsewire.comm.shared_memory import Partition, Run
from sparsewire.comm.torch import TorchCommunicator
from sparsewire.kernels.device.array import DeviceArray
from sparsewire.training.nodes.grid import Grid
from sparsewire.training.nodes.nodes import Flat, Nodes

from ..group import CommGroup
from .engine import ModelEngine, agreed_kind, engine_for

WINDOW = 2**26  # bytes that a rank sends at once, and receives


class MachineEngine:
    """Adds up arrays of devices over a machine's ranks, and shares the parts of their mean."""

    def __init__(self, comm: TorchCommunicator, group: CommGroup) -> None:
        self._comm, self._engine = comm, ModelEngine(comm, group)
        self._staging: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def reduce_scatter(self, array: DeviceArray, partition: Partition, out: DeviceArray) -> None:
        """Writes this rank's part of the sum over the ranks: its own numbers and then the others', in rank order."""
        rank, done = self._comm.rank, 0
        for runs in self._windows(array, partition):
            count = _count(runs[rank])
            own = out.tensor[done : (done := done + count)]
            parts = [_ranges(array.tensor, part) for part in runs]
            theirs = self._exchange(array.tensor, parts, [count] * len(runs))
            _copy(_places(own, runs[rank]), parts[rank])
            for place, numbers in enumerate(theirs):
                if place != rank:
                    own += numbers

    def all_gather(self, mine: DeviceArray, partition: Partition, array: DeviceArray) -> None:
        """Writes every rank's part to its ranges of the array, in the dtype that this is stored in."""
        rank, done = self._comm.rank, 0
        for runs in self._windows(array, partition):
            own = mine.tensor[done : (done := done + _count(runs[rank]))]
            theirs = self._exchange(array.tensor, [[own]] * len(runs), list(map(_count, runs)))
            theirs[rank] = own
            for part, numbers in zip(runs, theirs, strict=True):
                _copy(_ranges(array.tensor, part), _places(numbers, part))

    def _windows(self, array: DeviceArray, partition: Partition) -> Iterator[list[list[Run]]]:
        """The runs of every part in each exchange; none for an array without numbers."""
        width = max(1, WINDOW // array.tensor.element_size() // self._comm.size)
        return (runs for runs in partition.windows(width) if any(runs))

    def _exchange(self, like: Tensor, parts: Sequence[list[Tensor]], of: Sequence[int]) -> list[Tensor]:
        """Sends every other rank its tensors, and receives so many numbers `of` each; nothing of this rank's own."""
        others = [rank != self._comm.rank for rank in range(self._comm.size)]
        to = [other * sum(tensor.numel() for tensor in part) for other, part in zip(others, parts, strict=True)]
        of = [other * count for other, count in zip(others, of, strict=True)]
        source, target = self._stage("source", like, sum(to)), self._stage("target", like, sum(of))
        for part, place in zip(parts, _split(source, to), strict=True):
            if place.numel():
                _copy(list(_split(place, [tensor.numel() for tensor in part])), part)
        self._engine.wait("all_to_all", self._comm.start_all_to_all(target, source, to, of), like.device)
        return list(_split(target, of))

    def _stage(self, name: str, like: Tensor, size: int) -> Tensor:
        """Memory that is kept from exchange to exchange."""
        key = name, like.device, like.dtype
        if key not in self._staging or self._staging[key].numel() < size:
            self._staging[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._staging[key][:size]


def _count(runs: Sequence[Run]) -> int:
    return sum(stop - start for start, stop, _ in runs)


def _ranges(tensor: Tensor, runs: Sequence[Run]) -> list[Tensor]:
    """The runs where they lie in the array."""
    return [tensor[start:stop] for start, stop, _ in runs]


def _places(window: Tensor, runs: Sequence[Run]) -> list[Tensor]:
    """The same in a window, where they lie side by side."""
    return [window[offset : offset + stop - start] for start, stop, offset in runs]


def _split(tensor: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    return torch.functional.split(tensor, list(sizes))


def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, of)


def open_engines(group: CommGroup, nodes: Flat, model: dist.ProcessGroup | None, parameters: Iterable[Tensor]) -> None:
    """Gives a link's ranks the model's engine for what stays on devices, if all ranks have their gradients on devices
    of one kind. Every rank calls it."""
    if not isinstance(nodes, Nodes):
        nodes.across.engine = engine_for(group, model, parameters)
        return
    kind = agreed_kind(group.comm, parameters)
    if not kind:
        return
    beside = _beside(model, nodes.grid) if kind != "cpu" else lambda comm, parts: comm
    inside = beside(nodes.inside, nodes.grid.machines)
    across = beside(nodes.across, list(zip(*nodes.grid.machines, strict=True)))
    if inside is not None and across is not None:
        nodes.on_device, nodes.across.engine = MachineEngine(inside, group), ModelEngine(across, group)


def _beside(model: dist.ProcessGroup | None, grid: Grid) -> Callable[[Any, Sequence[Sequence[int]]], Any]:
    """Makes communicators over groups of the model's engine, beside those of the host."""
    parent: Any = model if model is not None else dist.group.WORLD
    ranks = dist.get_process_group_ranks(parent)

    def beside(comm: TorchCommunicator, parts: Sequence[Sequence[int]]) -> TorchCommunicator | None:
        made = new_part(parent, [[ranks[rank] for rank in part] for part in parts], "attach")
        return None if made is None else comm.beside(made, owns=True)

    return beside
