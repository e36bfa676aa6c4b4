"""Scenes of machines that add up on devices, forced on CPU tensors: how much at once, in which groups, and who may."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from scenes_attach import backward, build
from scenes_device import device_path, equals_host
from torch_ranks import EXACT, Stage

from sparsewire.comm.groups import new_part
from sparsewire.comm.torch import TorchCommunicator
from sparsewire.torch import attach
from sparsewire.torch.ddp import node_engine


def adds_up_in_rounds(stage: Stage, window: int, **settings: Any) -> None:
    """The bits do not depend on how much is sent at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_engine, "WINDOW", window)
        equals_host(stage, **settings)


def adds_up_in_groups_of_the_model(stage: Stage, **settings: Any) -> None:
    """As on an accelerator: within machines and between them in groups of the model's own backend, which end with the
    link; what they have moved is counted."""
    used: list[Any] = []
    start = TorchCommunicator.start_all_to_all

    def watched(comm: TorchCommunicator, *args: Any) -> Any:
        used.append(comm)
        return start(comm, *args)

    with pytest.MonkeyPatch.context() as patch:
        kind = node_engine.agreed_kind
        patch.setattr(node_engine, "agreed_kind", lambda *of: kind(*of) and "an accelerator")
        patch.setattr(TorchCommunicator, "start_all_to_all", watched)
        equals_host(stage, **settings)
    groups = {id(comm): comm for comm in used}
    assert len(groups) == 1 and all(comm._owns_group and comm._group is None for comm in groups.values())
    assert all(comm.traffic().bytes_sent > 0 for comm in groups.values())


def tells_where_it_adds_up(stage: Stage, paths: list[str]) -> dict[str, Any]:
    """Each rank has its own setting; all take the path of devices or none, and agree to the bit."""
    model = stage.ddp(build())
    with device_path(paths[stage.rank]), attach(model, EXACT, nodes=2) as link:
        backward(stage, model, 0)
        means = [parameter.grad for parameter in model.parameters()]
        assert all(torch.equal(theirs, mean) for mean in means for theirs in stage.everyones(mean))
        return dict(link.stats()["nodes"])


def makes_parts(stage: Stage, parts: list[list[int]]) -> list[float]:
    """Groups of some ranks with the model's backend, twice; the sum in this rank's, both times."""
    sums = []
    for _ in range(2):
        made = new_part(stage.group, parts, "attach")
        assert made is not None and dist.get_backend_config(made) == dist.get_backend_config(stage.group)
        number = torch.tensor([float(10**stage.rank)])
        dist.all_reduce(number, group=made)
        sums.append(number.item())
        dist.destroy_process_group(made)
    return sums


def makes_no_parts(stage: Stage, parts: list[list[int]]) -> bool:
    """Where the engine splits its communicators, which all of the world has to do, a part of the world has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(dist.group.WORLD), "bound_device_id", torch.device("cuda:0"), raising=False)
        return new_part(stage.group, parts, "attach") is None
