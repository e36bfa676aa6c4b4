"""Replicas of a model whose parameters are sharded along dimension 0, as FSDP does.

Rank r · shards + s has shard s of every parameter in replica r, and an averager with the ranks of the same shard in the
other replicas. What it saves is the state of its shard; `labelled` says of which shard, so that the states of all ranks
can be joined and cut again for other numbers of shards and replicas (`reshard`). Its averager reads what `unlabelled`
gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsewire.errors import InputError

from .grid import Grid


@dataclass(frozen=True)
class ShardGrid(Grid):
    """`bounds_of` are the places in each flat parameter where its shards begin, and its end."""

    bounds_of: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, bounds in self.bounds_of.items():
            if len(bounds) != self.parts + 1 or bounds[0] != 0 or list(bounds) != sorted(bounds):
                raise InputError(f"{name!r}: {self.parts} shards need {self.parts + 1} bounds that begin with 0 and "
                                 f"ascend, not {list(bounds)}")  # fmt: skip

    @classmethod
    def chunked(cls, replicas: int, shards: int, shapes: Mapping[str, Sequence[int]]) -> ShardGrid:
        """Shards of ceil(rows / shards) rows each, as `torch.chunk` cuts them; the last may be smaller, or empty.

        >>> ShardGrid.chunked(1, 4, {"w": (5, 3)}).bounds_of
        {'w': (0, 6, 12, 15, 15)}
        """
        machines = Grid.even(replicas * shards, shards).machines
        return cls(machines, bounds_of={name: _chunks(shape, shards) for name, shape in shapes.items()})

    @property
    def sizes(self) -> dict[str, int]:
        return {name: bounds[-1] for name, bounds in self.bounds_of.items()}

    def part_of(self, name: str, size: int, rank: int, width: int | None = None) -> tuple[int, int]:
        if name not in self.bounds_of:
            raise InputError(f"the state has {name!r}, which the model has not")
        bounds, unit, shard = self.bounds_of[name], width or 1, self.place(rank)[1]
        if size * unit != bounds[-1]:
            raise InputError(f"the state has {size * unit} numbers for {name!r}, the model {bounds[-1]}")
        if bounds[shard] % unit or bounds[shard + 1] % unit:
            raise InputError(f"{name!r} is cut within its rows of {unit} numbers")
        return bounds[shard] // unit, bounds[shard + 1] // unit

    def labelled(self, state: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """The state that a rank's averager saved, as that of the rank's shard."""
        return {**state, "rank": rank, "world_size": self.size, "nodes": self.facts(rank)}

    def unlabelled(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a shard as its averager reads it."""
        replica = self.place(int(state["rank"]))[0]
        return {**state, "rank": replica, "world_size": len(self.machines), "nodes": None}


def _chunks(shape: Sequence[int], shards: int) -> tuple[int, ...]:
    rows, width = (shape[0] if shape else 1), math.prod(shape[1:])
    chunk = -(-rows // shards)
    return tuple(min(rows, shard * chunk) * width for shard in range(shards + 1))
