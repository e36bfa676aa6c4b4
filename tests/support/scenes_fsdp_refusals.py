"""Scenes of sharded replicas that are refused."""

from __future__ import annotations

from typing import Any

import torch
from scenes_fsdp import LOSSLESS, WIDTH, Net, backward, build, mesh_of
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import Stage, raises

from sparsewire.errors import InputError, SparsewireError
from sparsewire.torch import attach


def is_refused(stage: Stage) -> dict[str, str]:
    """What each mistake is told; nothing is left behind that a link after it would stumble over."""
    mesh = mesh_of(2, 2)
    replicas, shards = mesh["replicate"], mesh["shard"]

    def told_of(model: nn.Module, scheme: Any = LOSSLESS, kind: Any = InputError, **settings: Any) -> str:
        settings = {"replicas": replicas, "optimizer": None, **settings}
        return raises(kind, lambda: attach(model, scheme, **settings))

    halves, by_columns, stepping = Net(), Net(), build(mesh)
    fully_shard(halves.blocks[0], mesh=shards)
    fully_shard(by_columns, mesh=shards, shard_placement_fn=lambda x: Shard(1) if x.shape == (WIDTH, WIDTH) else None)
    next(iter(stepping.parameters())).register_post_accumulate_grad_hook(lambda parameter: None)
    experts, uneven = Net(), Net()
    elsewhere = ShardPlacementResult(Shard(0), FSDPMeshInfo(replicas, shard_mesh_dim=0))
    fully_shard(experts, mesh=shards, shard_placement_fn=lambda x: elsewhere if x.shape == (WIDTH, WIDTH) else None)
    fully_shard(uneven.blocks[0], mesh=replicas)
    fully_shard(uneven, mesh=shards)
    taken, hooked = build(mesh), build(mesh)
    hooked.set_all_reduce_hook(print)
    link = attach(taken, LOSSLESS, replicas=replicas, optimizer=None)
    found = {
        "native": told_of(build(mesh, native=True)),
        "plain": told_of(Net()),
        "ddp": told_of(DistributedDataParallel(Net(), process_group=stage.group)),
        "fsdp1": told_of(FullyShardedDataParallel(Net(), process_group=stage.group, device_id=torch.device("cpu"))),
        "replicate": told_of(replicated(mesh)),
        "left": told_of(halves),
        "columns": told_of(by_columns),
        "experts": told_of(experts),
        "uneven": told_of(uneven),
        "stepping": told_of(stepping),
        "hooked": told_of(hooked),
        "taken": told_of(taken, kind=SparsewireError),
        "no replicas": told_of(build(mesh), replicas=None),
        "no mesh": told_of(build(mesh), replicas=2),
        "whole mesh": told_of(build(mesh), replicas=mesh),
        "wrong mesh": told_of(build(mesh), replicas=shards),
        "nodes": told_of(build(mesh), nodes=2),
        "auto": told_of(build(mesh), "auto", optimizer=None),
        "differ": told_of(build(mesh), kind=SparsewireError, seed=stage.rank // 3),
    }
    link.detach()
    return found


def is_too_old(stage: Stage) -> str:
    """A torch whose FSDP2 has no such hook."""
    hook = FSDPModule.set_all_reduce_hook
    model = build(mesh_of(2, 2))
    del FSDPModule.set_all_reduce_hook
    try:
        return raises(InputError, lambda: attach(model, LOSSLESS, replicas=mesh_of(2, 2)["replicate"], optimizer=None))
    finally:
        FSDPModule.set_all_reduce_hook = hook


def replicated(mesh: Any) -> nn.Module:
    from torch.distributed._composable.replicate import replicate

    model = Net()
    replicate(model, process_group=mesh["replicate"].get_group())
    return model


def reenters(stage: Stage) -> str:
    """Reentrant checkpointing runs backward within backward."""
    mesh = mesh_of(2, 2)
    model = build(mesh)
    model.reentrant = True
    link = attach(model, LOSSLESS, replicas=mesh["replicate"], optimizer=None)
    text = raises(InputError, lambda: backward(stage, model, 0))
    link.detach(InputError(text))
    return text
