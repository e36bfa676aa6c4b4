"""The grid of ranks says which ranks share a machine, and which part of every parameter belongs to each of them.

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

    @property
    def sizes(self) -> dict[str, int] | None:
        """Elements of each whole parameter, where the grid knows them."""
        return None

    def part_of(self, name: str, size: int, rank: int, width: int | None = None) -> tuple[int, int]:
        """Where a rank's part of a parameter of `size` entries begins and ends; entries of rows have a `width`."""
        return self.range(size, rank, unit=None if width is None else 1)

    def facts(self, rank: int) -> dict[str, int] | None:
        """What a state says of the part that it holds; None: everything."""
        if self.parts == 1:
            return None
        machine, part = self.place(rank)
        return {"machine": machine, "part": part, "parts": self.parts, "unit": self.unit}


# --- what is saved ---


def merge_parts(states: Sequence[Saved], sizes: Mapping[str, int] | None = None) -> list[Saved]:
    """All ranks' states as those of their machines, with whole tensors; states without parts stay as they are.

    With the `sizes` of whole parameters, a part that has nothing of one is an empty part, if the others are all of it.
    """
    if states[0].get("nodes") is None:
        return list(states)
    machines: dict[int, list[Saved]] = {}
    for state in sorted(states, key=lambda state: int(state["nodes"]["part"])):
        machines.setdefault(int(state["nodes"]["machine"]), []).append(state)
    return [_merged(machines[number], sizes) for number in sorted(machines)]


def _merged(parts: Sequence[Saved], sizes: Mapping[str, int] | None) -> Saved:
    names = list(dict.fromkeys(name for part in parts for name in part["buffers"]))
    buffers = {name: _merge_buffers(name, parts, sizes) for name in names}
    means = {name: _merge_mean(name, parts) for name in names if any(name in part.get("means", {}) for part in parts)}
    rates = {name: rate for part in parts for name, rate in part.get("rates", {}).items()}
    return {**parts[0], "buffers": buffers, "means": means, "rates": rates, "nodes": None}


def _merge_buffers(name: str, parts: Sequence[Saved], sizes: Mapping[str, int] | None) -> Saved:
    having = [part["buffers"][name] for part in parts if name in part["buffers"]]
    whole = {buffer: _merge([kept[buffer] for kept in having]) for buffer in having[0]}
    if len(having) < len(parts) and any(_elements(kept) != (sizes or {}).get(name) for kept in whole.values()):
        raise InputError(f"the ranks of one machine have saved parts of different parameters: not all have {name!r}")
    return whole


def _merge(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], Mapping):
        return np.concatenate(parts)
    indices = _side_by_side([part["indices"] for part in parts], [_entries(part) for part in parts])
    values = np.concatenate([part["values"] for part in parts])
    return {**parts[0], "indices": indices, "values": values, "shape": [sum(map(_numel, parts))]}


def _merge_mean(name: str, parts: Sequence[Saved]) -> Saved:
    """A part without a mean has none at its entries: it was handed out already, or is empty."""
    having = [part for part in parts if name in part["buffers"]]
    first = next(part["means"][name] for part in having if name in part["means"])
    empty = {"indices": first["indices"][:0], "values": first["values"][:0]}
    means = [part["means"].get(name, empty) for part in having]
    indices = _side_by_side([mean["indices"] for mean in means], [_length(part["buffers"][name]) for part in having])
    return {**first, "indices": indices, "values": np.concatenate([mean["values"] for mean in means])}


def cut(state: Saved, grid: Grid, rank: int) -> Saved:
    """A rank's part of what is saved of whole tensors; where the grid knows their sizes, without empty parts."""
    if grid.parts == 1:
        return state
    buffers = {name: {buffer: _cut(name, whole, grid, rank) for buffer, whole in kept.items()}
               for name, kept in state["buffers"].items()}  # fmt: skip
    if grid.sizes is not None:
        buffers = {name: kept for name, kept in buffers.items() if any(_elements(part) for part in kept.values())}
    means = {name: _between(mean, *grid.part_of(name, _length(state["buffers"][name]), rank))
             for name, mean in state.get("means", {}).items() if name in buffers}  # fmt: skip
    return {**state, "buffers": buffers, "means": means, "nodes": grid.facts(rank)}


def _cut(name: str, whole: Any, grid: Grid, rank: int) -> Any:
    if not isinstance(whole, Mapping):
        start, stop = grid.part_of(name, whole.size, rank)
        return whole[start:stop]
    width = int(whole["width"])
    start, stop = grid.part_of(name, _entries(whole), rank, width)
    return {**_between(whole, start, stop), "shape": [(stop - start) * width]}


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


def _elements(kept: Any) -> int:
    return _numel(kept) if isinstance(kept, Mapping) else int(kept.size)


def _numel(kept: Mapping[str, Any]) -> int:
    return math.prod(kept["shape"])


def _entries(kept: Mapping[str, Any]) -> int:
    return _numel(kept) // int(kept["width"])


def _length(buffers: Mapping[str, Any]) -> int:
    """Elements of a parameter, by one of its dense buffers."""
    return int(next(iter(buffers.values())).size)
