"""The job that ranks run: trains several arms side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..arrays import load_arrays
from ..net.worker import Worker
from ..tasks.images import digits
from ..tasks.task import MOMENTUM, mlp
from ..train.arms import Arm, seeded

Arms = Mapping[str, Mapping[str, Any]]
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


# --- training ----------------------------------------------------------------------------------------------------


def train(
    worker: Worker, arms: Arms, data: str, hidden: Sequence[int], steps: int, batch: int, rate: float, seed: int
) -> dict[str, Any]:
    """Trains all arms from the same weights on the same batches, one step of each in turn; the rate decays to 0."""
    x, y, test_x, test_y = load(data)
    sizes = [x.shape[1], *hidden, int(y.max()) + 1]
    made = {name: Arm(seeded(partial(mlp, sizes), seed), settings, rate, MOMENTUM) for name, settings in arms.items()}
    for step, chosen in enumerate(batches(len(x), steps, batch, worker, seed)):
        for arm in made.values():
            arm.optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
            arm.step(x[chosen], y[chosen])
        worker.emit(step=step, loss={name: arm.losses[-1] for name, arm in made.items()})
    reports = {name: _report(arm, test_x, test_y) for name, arm in made.items()}
    return {"parameters": next(iter(made.values())).dense_bytes // 4, "test": len(test_y), "arms": reports}


def load(data: str) -> Data:
    """Training and test images and labels: scikit-learn's `digits`, or an MNIST .npz."""
    x, y, test_x, test_y = digits() if data == "digits" else _mnist(load_arrays(Path(data)))
    return _images(x), torch.from_numpy(y.astype(np.int64)), _images(test_x), torch.from_numpy(test_y.astype(np.int64))


def _mnist(arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    """Files use either of two spellings: x_train or train_x."""
    names = [("x", "train"), ("y", "train"), ("x", "test"), ("y", "test")]
    return tuple(arrays.get(f"{a}_{b}", arrays.get(f"{b}_{a}")) for a, b in names)


def _images(x: Any) -> torch.Tensor:
    """Each image as a row of pixels, scaled to 0 … 1."""
    flat = torch.from_numpy(x.reshape(len(x), -1).astype(np.float32))
    return flat / flat.max()


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
