"""The job that ranks run: trains the same network by one method after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..net.worker import Worker
from ..tasks.images import digits
from ..tasks.task import MOMENTUM, mlp
from ..train.arms import Arm, seeded

Arms = Mapping[str, Mapping[str, Any]]


def train(
    worker: Worker, arms: Arms, hidden: Sequence[int], steps: int, batch: int, rate: float, seed: int
) -> dict[str, Any]:
    """Trains by each method from the same weights on the same batches; the learning rate falls to 0."""
    x, y, test_x, test_y = load()
    make = partial(mlp, [x.shape[1], *hidden, 10])
    reports = {}
    for name, method in arms.items():
        arm = Arm(seeded(make, seed), method, rate, MOMENTUM)
        dist.barrier()
        for step, chosen in enumerate(batches(len(x), steps, batch, worker, seed)):
            arm.optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
            arm.step(x[chosen], y[chosen])
            worker.emit(name=name, step=step + 1, loss=arm.losses[-1])
        reports[name] = _report(arm, test_x, test_y)
    return {"parameters": arm.dense_bytes // 4, "test": len(test_y), "arms": reports}


def load() -> tuple[torch.Tensor, ...]:
    """scikit-learn's digits: training and test images as rows of pixels from 0 to 1, and labels."""
    x, y, test_x, test_y = digits()
    images = [torch.from_numpy(part.astype(np.float32) / 16) for part in (x, test_x)]
    labels = [torch.from_numpy(part.astype(np.int64)) for part in (y, test_y)]
    return images[0], labels[0], images[1], labels[1]


def batches(count: int, steps: int, batch: int, worker: Worker, seed: int) -> Iterator[torch.Tensor]:
    """This rank's samples of each step; every epoch is shuffled anew, and a step may span two epochs."""
    draw = torch.Generator().manual_seed(seed)
    whole = batch * worker.size
    order = torch.cat([torch.randperm(count, generator=draw) for _ in range(steps * whole // count + 1)])
    for step in range(steps):
        yield order[step * whole :][worker.rank * batch : (worker.rank + 1) * batch]


def _report(arm: Arm, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    with torch.no_grad():
        right = int((arm.module(x).argmax(1) == y).sum())
    report = {**arm.report(), "accuracy": right / len(y)}
    arm.close()
    return report
