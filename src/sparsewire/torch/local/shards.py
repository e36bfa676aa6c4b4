"""`local_steps` for a model that FSDP2 has sharded within each replica: the change of each shard meets its like.

The ranks with the same shard are a training of their own. The shards of a replica agree on whether a meeting is finite,
and errors are told to all ranks of all replicas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from sparsewire.comm import Communicator
from sparsewire.core.statefile import reading
from sparsewire.errors import InputError
from sparsewire.training.checkpoints import fits
from sparsewire.training.failures import GivenGroup
from sparsewire.training.nodes.shards import ShardGrid
from sparsewire.training.schedule import Settings

from ..tensors import to_arrays, to_tensors
from .link import LocalLink


class ShardGroup(GivenGroup):
    """The ranks that have this rank's shard, one of each replica, within the group of all ranks."""

    def __init__(self, group: Any) -> None:
        super().__init__(group.across)
        self.group = group  # a ReplicaGroup

    @property
    def everyone(self) -> Communicator:
        everyone: Communicator = self.group.comm
        return everyone

    def of_shard(self, settings: Settings) -> Settings:
        """The settings of a shard's training."""
        parts = self.group.grid.parts
        return replace(settings.of_part(parts), agree=self.group.agree if parts > 1 else None)

    def close(self) -> None:
        self.group.close()

    def fail(self, error: BaseException) -> BaseException:
        failed: BaseException = self.group.fail(error)
        return failed

    def tell(self, error: BaseException) -> None:
        self.group.tell(error)

    def leave(self) -> None:
        self.group.leave()


def open_shards(model: torch.nn.Module, replicas: Any, group: Any, timeout: float | None) -> ShardGroup:
    """The group of a sharded model's replicas. Every rank calls it."""
    from ..fsdp.opening import plain_parameters
    from ..fsdp.private import find_units
    from ..fsdp.replicas import ReplicaGroup

    if group is not None:
        raise InputError("replicas= says which ranks meet: leave group= out")
    return ShardGroup(ReplicaGroup(find_units(model, plain_parameters), replicas, timeout, "local_steps"))


class ShardLink(LocalLink):
    """Made by `local_steps(model, …, replicas=…)`: as any local link, on all shards of all replicas."""

    @property
    def comm(self) -> Communicator:
        return self._shards.everyone

    @property
    def grid(self) -> ShardGrid:
        """Which ranks hold which shards of which replica."""
        grid: ShardGrid = self._shards.group.grid
        return grid

    @property
    def _shards(self) -> ShardGroup:
        group = self._meetings.group
        assert isinstance(group, ShardGroup)
        return group

    def state_dict(self) -> dict[str, Any]:
        return to_tensors(self.grid.labelled(to_arrays(super().state_dict()), self.comm.rank))

    def read_state(self, state: Mapping[str, Any]) -> Any:
        with reading():
            arrays = to_arrays(state)
            if not fits(self, arrays):
                raise InputError("this is the state of another shard or replica; load(link, folder) picks or reshards")
            return super().read_state(self.grid.unlabelled(arrays))

    def resume(self, group: dist.ProcessGroup | Communicator | None = None) -> None:
        """Is refused: FSDP's own groups do not outlive a rank."""
        raise InputError(
            "a sharded model cannot go on without a rank that held shards of it: start again, and load the last "
            "checkpoint, with as many shards and any number of replicas"
        )
