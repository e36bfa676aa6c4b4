"""What ranks do: train two ways side by side, or time the steps of several ways in turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from .arms import Arm, mlp
from .arrays import load_arrays
from .rank import Stage

MOMENTUM = 0.9
HELD_OUT = 3  # one in so many digits is for testing
Arms = Mapping[str, Mapping[str, Any]]
Data = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


# --- training ----------------------------------------------------------------------------------------------------


def train(
    stage: Stage, arms: Arms, data: str, hidden: Sequence[int], steps: int, batch: int, rate: float, seed: int
) -> dict[str, Any]:
    """Every arm from the same weights, on the same batches, a step of each in turn; the rate falls to 0 at the end."""
    x, y, test_x, test_y = load(data)
    sizes = [x.shape[1], *hidden, int(y.max()) + 1]
    made = {name: Arm(mlp(sizes, seed), settings, rate, MOMENTUM) for name, settings in arms.items()}
    for step, chosen in enumerate(batches(len(x), steps, batch, stage, seed)):
        for arm in made.values():
            arm.optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
            arm.step(x[chosen], y[chosen])
        stage.emit(step=step, loss={name: arm.losses[-1] for name, arm in made.items()})
    reports = {name: _report(arm, test_x, test_y) for name, arm in made.items()}
    return {"parameters": next(iter(made.values())).dense_bytes // 4, "test": len(test_y), "arms": reports}


def load(data: str) -> Data:
    """`digits` of scikit-learn, or an MNIST .npz: images and labels to train on and to test on."""
    x, y, test_x, test_y = _digits() if data == "digits" else _mnist(load_arrays(Path(data)))
    return _images(x), torch.from_numpy(y.astype(np.int64)), _images(test_x), torch.from_numpy(test_y.astype(np.int64))


def _digits() -> tuple[Any, ...]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    test, rest = order[: len(x) // HELD_OUT], order[len(x) // HELD_OUT :]
    return x[rest], y[rest], x[test], y[test]


def _mnist(arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    """Both spellings are about: x_train, and train_x."""
    names = [("x", "train"), ("y", "train"), ("x", "test"), ("y", "test")]
    return tuple(arrays.get(f"{a}_{b}", arrays.get(f"{b}_{a}")) for a, b in names)


def _images(x: Any) -> torch.Tensor:
    """Rows of pixels from 0 to 1."""
    flat = torch.from_numpy(x.reshape(len(x), -1).astype(np.float32))
    return flat / flat.max()


def batches(count: int, steps: int, batch: int, stage: Stage, seed: int) -> Iterator[torch.Tensor]:
    """This rank's share of each step's samples; epochs are shuffled anew and run into each other."""
    draw = torch.Generator().manual_seed(seed)
    whole = batch * stage.size
    order = torch.cat([torch.randperm(count, generator=draw) for _ in range(steps * whole // count + 1)])
    for step in range(steps):
        yield order[step * whole :][stage.rank * batch : (stage.rank + 1) * batch]


def _report(arm: Arm, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    module: nn.Module = arm.model.module
    with torch.no_grad():
        right = int((module(x).argmax(1) == y).sum())
    found = {**arm.report(), "accuracy": right / len(y)}
    arm.close()
    return found


# --- timing ------------------------------------------------------------------------------------------------------


def time_steps(
    stage: Stage, arms: Arms, sizes: Sequence[int], batch: int, warmup: dict[str, int], steps: dict[str, int],
    rounds: int,
) -> dict[str, Any]:  # fmt: skip
    """The arms in turns, `steps` of each in each of the rounds, after `warmup` steps that do not count."""
    made = {name: Arm(mlp(sizes, seed=0), settings, rate=0.01) for name, settings in arms.items()}
    draw = torch.Generator().manual_seed(stage.rank)
    x, y = torch.randn(batch, sizes[0], generator=draw), torch.randint(sizes[-1], (batch,), generator=draw)
    for name, arm in made.items():
        _run(stage, name, arm, warmup[name], x, y)
        arm.clear()
    for _ in range(rounds):
        for name, arm in made.items():
            _run(stage, name, arm, steps[name], x, y)
    found = {name: arm.report() for name, arm in made.items()}
    for arm in made.values():
        arm.close()
    return {"parameters": next(iter(made.values())).dense_bytes // 4, "arms": found}


def _run(stage: Stage, name: str, arm: Arm, steps: int, x: torch.Tensor, y: torch.Tensor) -> None:
    dist.barrier()  # no rank is still busy with the arm before
    for _ in range(steps):
        arm.step(x, y)
        stage.emit(arm=name, seconds=arm.seconds[-1])
