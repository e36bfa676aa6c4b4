"""The ranks of all replicas of a sharded model: who holds the same shard, and who shares a replica."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist

from sparsewire.comm import Communicator
from sparsewire.comm.torch import TorchCommunicator
from sparsewire.errors import InputError
from sparsewire.training.nodes.shards import ShardGrid
from sparsewire.training.settings import is_positive, real_shape

from ..group import CommGroup
from ..tensors import local
from .private import Unit

logger = logging.getLogger("sparsewire")
WRITE = (
    'write replicas=mesh["replicate"], of mesh = init_device_mesh(device, (replicas, shards), '
    'mesh_dim_names=("replicate", "shard"))'
)


class ReplicaGroup(CommGroup):
    """A group of all ranks: rank r of the mesh has shard s of replica r. `across` are the ranks with this rank's shard,
    replica by replica; `inside` those of its replica, shard by shard."""

    across: Communicator
    inside: Communicator

    def __init__(self, units: Sequence[Unit], replicas: Any, timeout: float | None, call: str) -> None:
        self.replicas = process_group(replicas)
        machines = _machines(units[0], self.replicas)
        ranks = sorted(rank for replica in machines for rank in replica)
        assert dist.group.WORLD is not None
        super().__init__(dist.group.WORLD, timeout if is_positive(timeout) else None, call, ranks)
        shapes = {name: real_shape(parameter) for unit in units for name, parameter in unit.parameters.items()}
        bounds = ShardGrid.chunked(len(machines), units[0].shards, shapes).bounds_of
        self.grid = ShardGrid(tuple(tuple(map(ranks.index, replica)) for replica in machines), bounds_of=bounds)
        replica, shard = self.grid.place(self.comm.rank)
        self.across, self.inside = self.comm.split(shard), self.comm.split(replica)

    def agree(self, finite: bool) -> bool:
        """Whether a step is finite for all shards of this replica."""
        return not self.inside.all_reduce(np.array([not finite], np.float64)).item()

    def norm(self, mine: float) -> float:
        """The norm of the replica's gradient, by that of this rank's shard."""
        with np.errstate(all="ignore"):
            return float(np.sqrt(self.inside.all_reduce(np.array([mine], np.float64) ** 2)).item())


def process_group(replicas: Any) -> dist.ProcessGroup:
    """The process group of `replicas=`, a mesh of one dimension or a group."""
    if isinstance(replicas, dist.ProcessGroup):
        return replicas
    if not hasattr(replicas, "get_group"):
        raise InputError(f"replicas is a DeviceMesh or a process group, not {replicas!r}: {WRITE}")
    if replicas.ndim != 1:
        raise InputError(f"replicas is a mesh of {replicas.ndim} dimensions: {WRITE}")
    group: dist.ProcessGroup = replicas.get_group()
    return group


def _machines(unit: Unit, replicas: dist.ProcessGroup) -> list[list[int]]:
    """The ranks of each replica, in the order of their shards. Every rank of a replica calls it."""
    mine = dist.get_process_group_ranks(replicas)
    inside = TorchCommunicator(unit.shard_group)
    columns = [json.loads(bytes(part)) for part in inside.all_gather(json.dumps(mine).encode(), "replicas")]
    if len({rank for column in columns for rank in column}) != len(mine) * len(columns):
        shards = dist.get_process_group_ranks(unit.shard_group)
        raise InputError(f"replicas= has ranks {mine}, the model's shards are on {shards}, only this rank may be in "
                         f"both: {WRITE}")  # fmt: skip
    return [list(row) for row in zip(*columns, strict=True)]


def make_equal(comm: Communicator, tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Gives all replicas the shards of replica 0; the names of those that differed. FSDP itself sends nothing between
    them."""
    digests = [crc32(_bits(tensor).cpu().numpy().data) for tensor in tensors.values()]
    everyones = [json.loads(bytes(part)) for part in comm.all_gather(json.dumps(digests).encode(), "equal")]
    differ = [name for name, *theirs in zip(tensors, *everyones, strict=True) if len(set(theirs)) > 1]
    for name in differ:
        mine = _bits(tensors[name])
        theirs = comm.broadcast(mine.cpu().numpy().tobytes() if comm.rank == 0 else None)
        if comm.rank:
            part, whole = torch.frombuffer(bytearray(theirs), dtype=torch.uint8), local(tensors[name].detach())
            whole.copy_(part.view(whole.dtype).view(whole.shape))
    return differ


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor.detach()).contiguous().view(-1).view(torch.uint8)
