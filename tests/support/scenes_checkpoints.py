"""Scenes of checkpoints that are damaged on one rank, of ranks that skip steps, and of saves that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from damaged import edit
from local_runs import batch, build
from scenes_state import Run, expect
from torch import nn
from torch_ranks import Stage, assert_same_state, raises, same_bits

from sparsewire.errors import InputError
from sparsewire.torch import LocalLink, load, load_dcp, local_steps, save, save_dcp
from sparsewire.training.checkpoints import find_sets

MOMENTUM = "topk(5%) | indices=rice | values=qsgd(bits=5) | memory=dgc(momentum=0.9)"


def loads_nowhere(stage: Stage, folder: str, damage: str, victim: int) -> str:
    """One rank's state is damaged: no rank goes on from the set, and all say whose it is."""
    run = Run(stage, scheme=MOMENTUM)
    run.train(3)
    path = save(run.link, folder)
    if stage.rank == victim:
        edit(path, damage)
    stage.group.barrier().wait()
    run.train(5)
    before = run.link.state_dict()
    told = raises(InputError, lambda: load(run.link, folder))
    assert f"rank {victim}: " in told and f"sparsewire-{victim:05d}-of-" in told, told
    assert_same_state(before, run.link.state_dict())
    run.train(7)
    stage.assert_same(run.model.module)
    run.link.detach()
    return told


def loads_resharded_nowhere(stage: Stage, folder: str) -> None:
    """With another number of ranks every rank needs every file."""
    run = Run(stage)
    edit(sorted(Path(folder).glob("*.sws"))[-1], "bit") if stage.rank == 0 else None
    stage.group.barrier().wait()
    before = run.link.state_dict()
    told = raises(InputError, lambda: load(run.link, folder))
    assert "checksum" in told or "length" in told, told
    assert_same_state(before, run.link.state_dict())
    run.link.detach()


def dcp_loads_nowhere(stage: Stage, folder: str) -> None:
    """One bit of rank 0's residual is another."""
    run = Run(stage)
    run.train(3)
    save_dcp(run.link, folder)
    if stage.rank == 0:
        path = Path(folder) / "__0_0.distcp"
        residual = run.link.state_dict()["buffers"]["middle.weight"]["residual"].numpy().tobytes()
        data = bytearray(path.read_bytes())
        data[data.index(residual) + len(residual) // 2] ^= 1
        path.write_bytes(data)
    stage.group.barrier().wait()
    run.train(5)
    before = run.link.state_dict()
    told = raises(InputError, lambda: load_dcp(run.link, folder))
    assert f"rank 0: InputError: {folder}: the state of rank 0 does not match its checksum" in told, told
    assert_same_state(before, run.link.state_dict())
    run.train(7)
    stage.assert_same(run.model.module)
    run.link.detach()


def a_failed_save_leaves_the_last_set(stage: Stage, folder: str) -> None:
    """One rank cannot write: all say so, and the set before is loaded."""
    run, again = Run(stage), Run(stage)
    run.train(3)
    save(run.link, folder)
    good = run.link.state_dict()
    run.train(5)
    name = next(iter(run.link.averager.states.by_name))
    kept = run.link.averager.states.by_name[name]["residual"]
    if stage.rank == 1:
        number, kept[0] = kept[0].item(), np.inf
    told = raises(InputError, lambda: save(run.link, folder))
    assert "rank 1: " in told and "not finite" in told, told
    if stage.rank == 1:
        kept[0] = number
    load(again.link, folder)
    assert_same_state(good, again.link.state_dict())
    save(run.link, folder)
    stage.group.barrier().wait()
    assert [one.key[:2] for one in find_sets(Path(folder))] == [[5, stage.size]]
    for one in (run, again):
        one.link.detach()


def saves_alone(stage: Stage, folder: str) -> None:
    """A link that is detached saves still; what was saved before stays, and the later step is loaded."""
    run, again = Run(stage), Run(stage)
    run.train(3)
    save(run.link, folder)
    run.train(5)
    run.link.detach()
    save(run.link, folder)
    stage.group.barrier().wait()
    load(again.link, folder)
    assert_same_state(run.link.state_dict(), again.link.state_dict())
    again.link.detach()


class Scaled:
    """Local steps with a GradScaler, which skips a step where this rank's gradient is not finite."""

    def __init__(self, stage: Stage, fused: bool) -> None:
        self.stage, self.step, self.model = stage, 0, build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scheme = "topk(10%) | indices=rice | values=qsgd(bits=5) | memory=residual"
        self.link: LocalLink = local_steps(self.model, self.optimizer, scheme, every=4, group=stage.group)

    def train(self, until: int) -> None:
        """As many batches on each rank; rank 1 skips its third step, so it comes to the meeting a batch later."""
        while self.step < until:
            x = batch(self.stage.rank, self.step)
            if self.step == 2 and self.stage.rank == 1:
                x = x * float("inf")
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss(x)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.step += 1

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        finite = torch.nan_to_num(x, 0.0, 0.0, 0.0)
        loss = (self.model(finite) - finite[:, :3]).square().mean()
        return loss if bool(x.isfinite().all()) else loss * float("inf")

    def kept(self) -> list[Any]:
        return [self.optimizer.state_dict(), self.scaler.state_dict(), self.model.state_dict()]

    def take(self, kept: list[Any]) -> None:
        self.optimizer.load_state_dict(kept[0])
        self.scaler.load_state_dict(kept[1])
        self.model.load_state_dict({name: one for name, one in kept[2].items() if "num_batches" in name}, strict=False)


def skips_unevenly(stage: Stage, folder: str, fused: bool, stop: int) -> list[int]:
    """A set of ranks with different numbers of local steps is saved, and loaded: each goes on where it was."""
    whole, first, second = (Scaled(stage, fused) for _ in range(3))
    for run, until in ((whole, 22), (first, stop)):
        run.train(until)
    steps = first.link.step
    save(first.link, folder)
    assert len(list(Path(folder).glob("*.sws"))) == stage.size
    second.take(torch.load(put(first.kept(), Path(folder) / f"own-{stage.rank}.pt"), weights_only=True))
    load(second.link, folder)
    assert second.link.step == steps
    assert_same_state(first.link.state_dict(), second.link.state_dict())
    second.step = stop
    second.train(22)
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert same_bits(one.detach(), other.detach())
    for run in (whole, first, second):
        run.link.detach()
        stage.assert_same(nn.Sequential(run.model))
    return [steps]


def put(value: Any, path: Path) -> Path:
    torch.save(value, path)
    return path


def takes_over_uneven_steps(stage: Stage, folder: str) -> list[int]:
    """With another number of ranks all have made as many steps as the rank that made the most."""
    run = Scaled(stage, False)
    load(run.link, folder)
    found = [run.link.step, run.link.rounds.meeting]
    run.step = 3  # behind the batch that is skipped
    run.train(9)
    run.link.detach()
    stage.assert_same(run.model)
    return found


def refuses_incomplete_sets(stage: Stage, folder: str, missing: int) -> None:
    """One rank's file is not there: no rank goes on, with whatever it has."""
    run = Run(stage)
    run.train(2)
    save(run.link, folder)
    stage.group.barrier().wait()
    if stage.rank == 0:
        (file,) = Path(folder).glob(f"sparsewire-{missing:05d}-of-{stage.size:05d}-step2-*.sws")
        file.unlink()
    stage.group.barrier().wait()
    expect("no set of files that all ranks can use|complete set", lambda: load(run.link, folder))
    run.link.detach()


def refuses_mixed_steps(stage: Stage, folder: str) -> None:
    """Rank 1's file of the last step is lost, the others' of the step before: nothing is there that all could use."""
    run = Run(stage)
    for step in (2, 4):
        run.train(step)
        save(run.link, Path(folder) / f"{step}")
    own = Path(folder) / f"{2 if stage.rank == 1 else 4}"
    (file,) = own.glob(f"sparsewire-{stage.rank:05d}-*.sws")
    mixed = Path(folder) / "mixed" / f"disk {stage.rank}"  # each rank's machine has a disk of its own
    mixed.mkdir(parents=True)
    (mixed / file.name).write_bytes(file.read_bytes())
    state = run.link.state_dict()
    expect("no set of files that all ranks can use.*step 4 of 3 ranks.*step 2 of 3 ranks",
           lambda: load(run.link, mixed))  # fmt: skip
    assert_same_state(state, run.link.state_dict())
    run.link.detach()
