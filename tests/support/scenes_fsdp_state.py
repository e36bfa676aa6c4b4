"""Scenes of sharded replicas over time: trainings that go on, come back or fail."""

from __future__ import annotations

import copy
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scenes_fsdp import WIDTH, assert_same_replicas, assert_same_shards, backward, build, mesh_of
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch_ranks import Stage, assert_same_state, logged, raises, told

from sparsewire.errors import AccuracyWarning, InputError, SparsewireError
from sparsewire.torch import attach, load, load_dcp, save, save_dcp

SCHEME = "topk(5%) | values=qsgd(bits=7) | memory=gain(momentum=0.9)"

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "plain sgd": partial(torch.optim.SGD, lr=0.2),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}


class Run:
    """A sharded model, its optimizer and its link."""

    def __init__(self, stage: Stage, replicas: int, shards: int, scheme: str | None = SCHEME, kind: str = "sgd",
                 seed: int = 7, built: dict[str, Any] | None = None, **settings: Any) -> None:  # fmt: skip
        self.stage, self.mesh, self.step = stage, mesh_of(replicas, shards), 0
        self.model = build(self.mesh, seed=seed, **(built or {}))
        parameters = self.model.parameters()
        self.optimizer = OPTIMIZERS[kind](parameters)
        settings = {"optimizer": self.optimizer, "dense_below": 40, **settings}
        self.link = attach(self.model, scheme, replicas=self.mesh["replicate"], **settings)

    def train(self, end: int) -> list[float]:
        losses = []
        while self.step < end:
            self.step += 1
            losses.append(backward(self.stage, self.model, self.step).item())
            self.optimizer.step()
            self.optimizer.zero_grad()
        return losses

    def copied(self) -> list[Any]:
        return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])

    def take(self, states: list[Any], step: int) -> None:
        self.model.load_state_dict(states[0])
        self.optimizer.load_state_dict(states[1])
        self.step = step


def trains(stage: Stage, kind: str, steps: int = 40, **settings: Any) -> dict[str, Any]:
    """The default recipe, from weights that differ between replicas."""
    with logged() as lines:
        run = Run(stage, 2, 2, None, kind, seed=stage.rank // 2, total_steps=steps, **settings)
    assert_same_replicas(stage, run.model)
    losses = run.train(steps)
    assert_same_replicas(stage, run.model)
    stats = run.link.stats()
    run.link.detach()
    return {"losses": losses, "stats": stats, "lines": lines, "memory": run.link.settings.schedule.scheme.memory.id}


def resumes_exactly(stage: Stage, folder: str, through: str, **settings: Any) -> None:
    """Saved and loaded = never stopped."""
    whole = Run(stage, 2, 2, **settings)
    whole.train(4)
    states = whole.copied()
    {"files": save, "dcp": save_dcp}[through](whole.link, folder)
    whole.train(7)
    resumed = Run(stage, 2, 2, **settings)
    resumed.take(states, 4)
    {"files": load, "dcp": load_dcp}[through](resumed.link, folder)
    resumed.train(7)
    assert_same_shards(whole.model, resumed.model)
    assert_same_state(whole.link.state_dict(), resumed.link.state_dict())
    for run in (whole, resumed):
        run.link.detach()


def kept(stage: Stage, run: Run, buffer: str) -> dict[str, torch.Tensor]:
    """The mean over the replicas of what each has not sent of whole parameters."""
    state, found = run.link.state_dict(), {}
    for name, parameter in run.model.named_parameters():
        shard, numel = state["buffers"].get(name, {}).get(buffer), parameter.numel()
        start = run.link.grid.bounds_of[name][run.link._group.inside.rank]
        whole = torch.zeros(numel)
        if shard is not None:
            whole[start : start + shard.numel()] = shard
        found[name] = sum(stage.everyones(whole)) / run.link.stats()["replicas"]
    return found


def moves(stage: Stage, folder: str, through: str, to: list[int], **settings: Any) -> None:
    """Other numbers of replicas and shards go on with the same mean of what was not sent."""
    old = Run(stage, 2, 3, **settings)
    old.train(3)
    before = {buffer: kept(stage, old, buffer) for buffer in old.link.settings.schedule.scheme.memory.buffers}
    assert any(part.any() for part in before["residual"].values())
    {"files": save, "dcp": save_dcp}[through](old.link, folder)
    old.link.detach()
    if through == "dcp":
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        whole = [saved[f"replica0000{replica}.buffers.head.weight.residual"].size for replica in range(2)]
        assert whole == [(5, WIDTH)] * 2
    new = Run(stage, *to, **settings)
    {"files": load, "dcp": load_dcp}[through](new.link, folder)
    assert new.link.step == 3
    for buffer, parts in before.items():
        after = kept(stage, new, buffer)
        for name, part in parts.items():
            torch.testing.assert_close(
                after[name], part, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}"
            )
    new.train(3)
    assert_same_replicas(stage, new.model)
    new.link.detach()


def overflows_in_one_shard(stage: Stage) -> list[bool]:
    """Rank 1's shard of one unit is infinite in one step: nothing of any shard's residual moves, then it goes on."""
    run = Run(stage, 2, 2)
    run.train(3)
    before = copy.deepcopy(run.link.state_dict())
    take = run.link.take

    def spoiled(unit: Any, reduced: torch.Tensor) -> None:
        reduced[0] = float("inf")
        take(unit, reduced)

    if stage.rank == 1:
        run.link.take = spoiled
    backward(stage, run.model, 9)
    after = run.link.state_dict()
    assert (before.pop("step"), after.pop("step")) == (3, 4)
    assert_same_state(before, after)
    finite = [bool(parameter.grad.to_local().isfinite().all()) for parameter in run.model.parameters()]
    run.link.take = take
    run.optimizer.zero_grad()
    run.train(6)
    assert_same_replicas(stage, run.model)
    run.link.detach()
    return finite


def clips(stage: Stage) -> float:
    """clip_norm is that of a replica's whole gradient: with one far below it, all that goes out has at most that."""
    run = Run(stage, 2, 2, "nonzero | values=raw | memory=none", clip_norm=1e-3)
    backward(stage, run.model, 0)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in run.model.parameters()]).full_tensor().item()
    run.link.detach()
    return norm


def die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def is_lost(stage: Stage, victim: int, how: str) -> dict[str, Any]:
    """One rank dies before its fourth step or within its exchange, or raises and ends its process."""
    run = Run(stage, 2, 2)
    run.train(2)
    begin = time.monotonic()
    try:
        with run.link:
            for end in range(3, 20):
                if stage.rank == victim and end == 4:
                    if how == "dies":
                        die()
                    if how == "raises":
                        raise ValueError("no batch left")
                    run.link.averager.prepare = die  # on the communication thread
                run.train(end)
    except Exception as error:
        if stage.rank == victim:
            os._exit(1)
        return {"text": told(error), "seconds": time.monotonic() - begin, "step": run.step}
    raise AssertionError("nobody was missed")


def goes_on_after_an_error(stage: Stage) -> str:
    """A backward that raises after shards were sent cannot be gone on from as if nothing were."""
    run = Run(stage, 2, 2)
    run.train(1)

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("no gradient")

    forward = run.model.first.forward

    def failing(x: torch.Tensor) -> torch.Tensor:
        y = forward(x)
        y.register_hook(fail)
        return y

    run.model.first.forward = failing
    raises(ValueError, lambda: run.train(2))
    run.model.first.forward = forward
    run.model.reset_iter_state()
    text = raises(SparsewireError, lambda: backward(stage, run.model, 3))
    run.link.detach(ValueError(text))
    return text


def finds_damage(stage: Stage, folder: str) -> str:
    """A file in which a byte has changed: no rank goes on from it."""
    run = Run(stage, 2, 2)
    run.train(2)
    save_dcp(run.link, folder)
    before = run.link.state_dict()
    path = Path(folder) / f"__{stage.rank}_0.distcp"
    stage.everyones(torch.zeros(1))
    if stage.rank == 2:
        data = bytearray(path.read_bytes())
        state = before["buffers"]["first.weight"]["residual"].numpy().tobytes()
        data[data.index(state) + 5] ^= 1
        path.write_bytes(data)
    stage.everyones(torch.zeros(1))
    text = raises(InputError, lambda: load_dcp(run.link, folder))
    assert_same_state(before, run.link.state_dict())
    run.link.detach()
    return text


def is_clipped_after_backward(stage: Stage) -> str:
    """Behind a memory that costs accuracy, and is warned of."""
    run = Run(stage, 2, 2)
    run.train(1)
    backward(stage, run.model, 2)
    nn.utils.clip_grad_norm_(run.model.parameters(), 1e-3)
    text = raises(AccuracyWarning, run.optimizer.step)
    run.link.detach()
    return text


def follows_a_scaler(stage: Stage) -> list[float]:
    """A GradScaler skips a step that is infinite in one shard, on all ranks, and residuals follow its scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    run = Run(stage, 2, 2, scaler=scaler)
    take, losses = run.link.take, []

    def spoiled(unit: Any, reduced: torch.Tensor) -> None:
        reduced[0] = float("inf")
        take(unit, reduced)

    for step in range(20):
        run.link.take = spoiled if step == 5 and stage.rank == 1 else take
        stage.seed(step)
        loss = nn.functional.mse_loss(run.model(torch.randn(6, 20)), torch.ones(6, 5))
        scaler.scale(loss).backward()
        before = [parameter.detach().to_local().clone() for parameter in run.model.parameters()]
        scaler.step(run.optimizer)
        scaler.update()
        run.optimizer.zero_grad()
        same = [torch.equal(x.to_local(), old) for x, old in zip(run.model.parameters(), before, strict=True)]
        assert all(same) == (step == 5), step
        losses.append(loss.item())
    assert scaler.get_scale() == 32.0
    assert_same_replicas(stage, run.model)
    run.link.detach()
    return losses
