"""Scenes of local steps on sharded replicas: each trains alone, and the change of each shard meets its like."""

from __future__ import annotations

import copy
from typing import Any

import torch
from scenes_fsdp import assert_same_replicas, assert_same_shards, backward, build, mesh_of
from torch import nn
from torch_ranks import Stage, assert_same_state, raises

from sparsewire.errors import InputError
from sparsewire.torch import load, local_steps, save

EXACT = "nonzero | values=raw | memory=none"


class Local:
    """A sharded model that trains alone for some steps."""

    def __init__(self, stage: Stage, replicas: int, shards: int, scheme: str | None = None, **settings: Any) -> None:
        self.stage, self.mesh, self.step = stage, mesh_of(replicas, shards), 0
        self.model = build(self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        settings = {"every": 3, "replicas": self.mesh["replicate"], **settings}
        self.link = local_steps(self.model, self.optimizer, scheme, **settings)

    def train(self, end: int) -> list[float]:
        losses = []
        while self.step < end:
            self.step += 1
            losses.append(one_step(self.stage, self.model, self.optimizer, self.step, self.mesh.size(1)))
        return losses


def one_step(stage: Stage, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, shards: int) -> float:
    loss = backward(stage, model, step).item()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def equals_the_mean_of_replicas(stage: Stage, replicas: int, shards: int) -> None:
    """With everything sent, weights after a meeting are the replicas' mean."""
    run, mesh = Local(stage, replicas, shards, EXACT), mesh_of(replicas, shards)
    alone = build(mesh)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=0.01)
    for step in range(1, 4):
        one_step(stage, alone, optimizer, step, shards)
    with torch.no_grad():
        for parameter in alone.parameters():
            local = parameter.to_local()
            torch.distributed.all_reduce(local, group=mesh["replicate"].get_group())
            local /= replicas
    run.train(3)
    for (name, mine), theirs in zip(run.model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.to_local(), theirs.to_local(), rtol=1e-5, atol=1e-6, msg=name)
    assert_same_replicas(stage, run.model)
    run.link.detach()


def trains(stage: Stage) -> dict[str, Any]:
    run = Local(stage, 2, 2, total_steps=60)
    losses = run.train(60)
    run.link.detach()
    assert_same_replicas(stage, run.model)
    return {"losses": losses, "stats": run.link.stats()}


def resumes_exactly(stage: Stage, folder: str) -> None:
    """In mid-round."""
    whole = Local(stage, 2, 2, "sparseloco", every=3)
    whole.train(4)
    states = copy.deepcopy([whole.model.state_dict(), whole.optimizer.state_dict()])
    save(whole.link, folder)
    whole.train(8)
    resumed = Local(stage, 2, 2, "sparseloco", every=3)
    resumed.model.load_state_dict(states[0])
    resumed.optimizer.load_state_dict(states[1])
    load(resumed.link, folder)
    resumed.step = 4
    resumed.train(8)
    assert_same_shards(whole.model, resumed.model)
    assert_same_state(whole.link.state_dict(), resumed.link.state_dict())
    for run in (whole, resumed):
        run.link.detach()


def moves(stage: Stage, folder: str) -> str:
    """Other numbers of replicas load; other numbers of shards are refused."""
    old = Local(stage, 3, 2)
    old.train(3)
    common = {name: array.copy() for name, array in old.link.rounds.common.items()}
    save(old.link, folder)
    old.link.detach()
    new = Local(stage, 2, 3)
    text = raises(InputError, lambda: load(new.link, folder))
    new.link.detach()
    same = Local(stage, 3, 2)
    load(same.link, folder)
    assert all((same.link.rounds.common[name] == array).all() for name, array in common.items())
    same.link.detach()
    return text


def a_replica_diverges(stage: Stage) -> int:
    """One shard of replica 1 is not finite at a meeting: all shards of all replicas go back to the common weights."""
    run = Local(stage, 2, 2)
    run.train(3)
    common = [parameter.detach().to_local().clone() for parameter in run.model.parameters()]
    for _ in range(2):
        run.step += 1
        one_step(stage, run.model, run.optimizer, run.step, 2)
    if stage.rank == 3:
        with torch.no_grad():
            next(iter(run.model.parameters())).to_local()[0] = float("inf")
    run.link.meet()
    for parameter, before in zip(run.model.parameters(), common, strict=True):
        assert torch.equal(parameter.to_local(), before)
    run.train(9)
    run.link.detach()
    assert_same_replicas(stage, run.model)
    return run.link.stats()["nonfinite"]


def is_refused(stage: Stage) -> list[str]:
    mesh = mesh_of(2, 2)
    model = build(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    link = local_steps(model, optimizer, every=2, replicas=mesh["replicate"])
    texts = [
        raises(InputError, lambda: local_steps(model, optimizer, every=2)),
        raises(
            InputError, lambda: local_steps(model, optimizer, every=2, group=stage.group, replicas=mesh["replicate"])
        ),
        raises(InputError, lambda: link.resume()),
    ]
    link.detach()
    return texts
