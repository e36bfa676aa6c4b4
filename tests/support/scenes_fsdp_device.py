"""Scenes of sharded replicas whose shards take the path of devices, forced on CPU tensors."""

from __future__ import annotations

from typing import Any

import torch
from scenes_device import device_path, transforms_of_torch
from scenes_fsdp import STEPS, assert_same_replicas, assert_same_shards
from scenes_fsdp_state import Run
from torch_ranks import Stage, assert_same_state

from sparsewire.kernels.device import crossing


def equals_host(
    stage: Stage, step: str = "plain", mixed: bool = False, steps: int = 3, by_torch: bool = False, **settings: Any
) -> None:
    """Two trainings that differ in the path alone have the same bits throughout; a state of one goes on in the other.
    `mixed`: of the second training, only the first replica takes the path of devices."""
    path = "off" if mixed and stage.rank >= stage.size // 2 else "force"
    with transforms_of_torch("sparsewire.torch.fsdp.opening", by_torch):
        host, there, back = (_run(stage, one, **settings) for one in ("off", path, "off"))
    _train(stage, host, step, steps)
    with crossing.watched() as seen:
        _train(stage, there, step, steps)
    assert bool(seen.waits) == (path == "force"), seen
    assert_same_shards(host.model, there.model)
    state = host.link.state_dict()
    assert_same_state(state, there.link.state_dict())
    there.link.load_state_dict(state)
    back.link.load_state_dict(there.link.state_dict())
    assert_same_state(back.link.state_dict(), state)
    for run in (host, there):
        _train(stage, run, step, steps + 2)
        assert_same_replicas(stage, run.model)
    assert_same_shards(host.model, there.model)
    for run in (host, there, back):
        run.link.detach()


def _run(stage: Stage, path: str, **settings: Any) -> Run:
    with device_path(path):
        return Run(stage, 2, stage.size // 2, **settings)


def _train(stage: Stage, run: Run, step: str, end: int) -> None:
    while run.step < end:
        run.step += 1
        STEPS[step](stage, run.model, run.step)
        run.optimizer.step()
        run.optimizer.zero_grad()


def crosses_little(stage: Stage, units: int = 3) -> None:
    """Each unit's shards are waited for once, and no gradient crosses whole."""
    run = _run(stage, "force")
    _train(stage, run, "plain", 3)
    with crossing.watched() as seen:
        _train(stage, run, "plain", 5)
    largest = max(parameter.to_local().numel() for parameter in run.model.parameters())
    assert max(seen.down) < torch.float32.itemsize * largest / 2, seen.down
    assert seen.waits == 2 * units, seen.waits
    run.link.detach()
