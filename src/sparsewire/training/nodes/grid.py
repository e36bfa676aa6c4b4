"""Which ranks share a machine, and which part of every parameter each of them looks after.

Parameters are cut, not buckets, which engines regroup: part j of each belongs to the j-th rank of every machine. What
is saved of a training says which part it holds; `join` makes whole tensors of a machine's parts, `cut` parts of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from sparsewire.errors import InputError
from sparsewire.kernels import Array, index_dtype

Saved = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The ranks of each machine. Parameters are cut between entries of `unit` elements."""

    machines: tuple[tuple[int, ...], ...]
    unit: int = 1

    def __post_init__(self) -> None:
        sizes = [len(ranks) for ranks in self.machines]
        if len(set(sizes)) > 1:
            raise InputError(f"the machines have {', '.join(map(str, sizes))} ranks: start as many on each, or give "
                             f"nodes={math.gcd(*sizes)}, so that every {math.gcd(*sizes)} ranks count as a machine, "
                             "or leave nodes out")  # fmt: skip

    @classmethod
    def even(cls, size: int, ranks: int, unit: int = 1) -> Grid:
        """Every `ranks` ranks one after another are a machine.

        >>> Grid.even(4, 2).machines
        ((0, 1), (2, 3))
        """
        if size % ranks:
            raise InputError(f"nodes={ranks}: {size} ranks are no multiple of {ranks} on each machine; give a divisor "
                             f"of {size}, or leave nodes out")  # fmt: skip
        return cls(tuple(tuple(range(start, start + ranks)) for start in range(0, size, ranks)), unit)

    @property
    def size(self) -> int:
        return len(self.machines) * self.parts

    @property
    def parts(self) -> int:
        """Ranks on each machine; 1: every rank looks after whole parameters."""
        return len(self.machines[0])

    def place(self, rank: int) -> tuple[int, int]:
        """(machine, part)."""
        return next((number, ranks.index(rank)) for number, ranks in enumerate(self.machines) if rank in ranks)

    def peers(self, rank: int) -> list[int]:
        """The ranks that have the same part as this one, machine by machine."""
        part = self.place(rank)[1]
        return [ranks[part] for ranks in self.machines]

    def bounds(self, size: int, unit: int | None = None) -> list[int]:
        """Where a tensor of this size is cut, its beginning and its end included.

        >>> Grid.even(4, 2, unit=3).bounds(10)
        [0, 6, 10]
        """
        unit = unit or self.unit
        entries = -(-size // unit)
        return [min(size, entries * part // self.parts * unit) for part in range(self.parts + 1)]

    def range(self, size: int, rank: int, unit: int | None = None) -> tuple[int, int]:
        """Where a rank's part of such a tensor begins and ends."""
        part = self.place(rank)[1]
        start, stop = self.bounds(size, unit)[part : part + 2]
        return start, stop

    def facts(self, rank: int) -> dict[str, int] | None:
        """What a state says of the part that it holds; None: everything."""
        if self.parts == 1:
            return None
        machine, part = self.place(rank)
        return {"machine": machine, "part": part, "parts": self.parts, "unit": self.unit}


# --- what is saved ---


def join(states: Sequence[Saved]) -> list[Saved]:
    """All ranks' states as those of their machines, with whole tensors; states without parts stay as they are."""
    if states[0].get("nodes") is None:
        return list(states)
    machines: dict[int, list[Saved]] = {}
    for state in sorted(states, key=lambda state: int(state["nodes"]["part"])):
        machines.setdefault(int(state["nodes"]["machine"]), []).append(state)
    return [_joined(machines[number]) for number in sorted(machines)]


def _joined(parts: Sequence[Saved]) -> Saved:
    names = [set(part["buffers"]) for part in parts]
    if any(one != names[0] for one in names):
        raise InputError("the ranks of one machine have saved parts of different parameters")
    buffers = {name: {buffer: _join([part["buffers"][name][buffer] for part in parts]) for buffer in kept}
               for name, kept in parts[0]["buffers"].items()}  # fmt: skip
    means = {name: _join_mean(name, parts) for name in parts[0].get("means", {})}
    return {**parts[0], "buffers": buffers, "means": means, "nodes": None}


def _join(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], Mapping):
        return np.concatenate(parts)
    indices = _side_by_side([part["indices"] for part in parts], [_entries(part) for part in parts])
    values = np.concatenate([part["values"] for part in parts])
    return {**parts[0], "indices": indices, "values": values, "shape": [sum(map(_numel, parts))]}


def _join_mean(name: str, parts: Sequence[Saved]) -> Saved:
    found = [part["means"][name] for part in parts]
    sizes = [_length(part["buffers"][name]) for part in parts]
    indices = _side_by_side([mean["indices"] for mean in found], sizes)
    return {**found[0], "indices": indices, "values": np.concatenate([mean["values"] for mean in found])}


def cut(state: Saved, grid: Grid, rank: int) -> Saved:
    """A rank's part of what is saved of whole tensors."""
    if grid.parts == 1:
        return state
    buffers = {name: {buffer: _cut(whole, grid, rank) for buffer, whole in kept.items()}
               for name, kept in state["buffers"].items()}  # fmt: skip
    means = {name: _between(mean, *grid.range(_length(state["buffers"][name]), rank))
             for name, mean in state.get("means", {}).items()}  # fmt: skip
    return {**state, "buffers": buffers, "means": means, "nodes": grid.facts(rank)}


def _cut(whole: Any, grid: Grid, rank: int) -> Any:
    if not isinstance(whole, Mapping):
        start, stop = grid.range(whole.size, rank)
        return whole[start:stop]
    start, stop = grid.range(_entries(whole), rank, unit=1)
    return {**_between(whole, start, stop), "shape": [(stop - start) * int(whole["width"])]}


def _between(kept: Mapping[str, Any], start: int, stop: int) -> Saved:
    """The entries of sparse numbers in a range, counted from its beginning."""
    first, last = np.searchsorted(kept["indices"], (start, stop))
    width = int(kept.get("width", 1))
    return {**kept, "indices": kept["indices"][first:last] - kept["indices"].dtype.type(start),
            "values": kept["values"][first * width : last * width]}  # fmt: skip


def _side_by_side(indices: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Indices into tensors of these sizes as those into one that consists of them."""
    *starts, size = accumulate(sizes, initial=0)
    moved = [part.astype(np.int64) + start for part, start in zip(indices, starts, strict=True)]
    return np.concatenate(moved).astype(index_dtype(size))


def _numel(kept: Mapping[str, Any]) -> int:
    return math.prod(kept["shape"])


def _entries(kept: Mapping[str, Any]) -> int:
    return _numel(kept) // int(kept["width"])


def _length(buffers: Mapping[str, Any]) -> int:
    """Elements of a parameter, by one of its dense buffers."""
    return int(next(iter(buffers.values())).size)
