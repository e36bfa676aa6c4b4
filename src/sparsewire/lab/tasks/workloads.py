"""The trainings of `sparsewire lab train` by name, each with the settings it has if nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from .images import cifar, lenet, mnist, perceptron, resnet20, small_digits
from .ratings import Collaborative, SgdTask, movielens
from .task import Data, Part, Task, mlp
from .texts import Recurrent, Transformer, shakespeare, wikitext

SAMPLES = 64
BATCH = 8
MODELS: dict[str, list[int]] = {"25M": [1024, 4096, 4096, 1000], "small": [64, 1024, 1024, 10], "tiny": [64, 128, 10]}


@dataclass(frozen=True)
class Workload:
    """A task; its learning rate, dense training's best of those that were tried; the file of data that it needs; steps
    that are not timed; how often it is tested on the way."""

    task: Task
    rate: float
    file: str | None = None
    warmup: int = 5
    tests: int = 10


@dataclass(frozen=True)
class TimedTask(Task):
    """A task whose steps are timed and nothing else: plain SGD, nothing is tested."""

    def optimizer(self, model: nn.Module, rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), rate)


def noise(folder: Path, sizes: list[int]) -> Data:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, sizes[0], generator=draw), torch.randint(sizes[-1], (SAMPLES,), generator=draw)
    part: Part = (x, y)
    return Data(part, part, part, sizes[-1])


def synthetic(model: str) -> Workload:
    sizes = MODELS[model]
    what = f"MLP {'-'.join(map(str, sizes))}, noise, SGD"
    task = TimedTask(what, partial(noise, sizes=sizes), lambda data: mlp(sizes), "", False, 8, BATCH, (0.01,))
    return Workload(task, 0.01, warmup=2, tests=0)


WORKLOADS = {
    "mlp-digits": Workload(
        Task(
            "MLP 64-256-256-10, scikit-learn's digits, SGD", small_digits, perceptron, "accuracy", False, 250, 16,
            (0.05, 0.1, 0.2),
        ), 0.1,
    ),
    "lenet-mnist": Workload(
        Task("LeNet-5, MNIST, SGD", mnist, lenet, "accuracy", False, 600, 32, (0.02, 0.05, 0.1)), 0.05, "mnist.npz",
    ),
    "resnet20-cifar": Workload(
        Task("ResNet-20, CIFAR-10, SGD", cifar, resnet20, "accuracy", False, 600, 32, (0.02, 0.05, 0.1, 0.2)), 0.1,
        "cifar10-jpeg.npz",
    ),
    "lstm-wikitext": Workload(
        Task("LSTM, words of WikiText-2, SGD", wikitext, Recurrent, "loss", False, 600, 8, (0.1, 0.3, 1.0)), 3.0,
        "wikitext2-a.txt",
    ),
    "gpt-text": Workload(
        Task(
            "transformer, characters, AdamW", shakespeare, Transformer, "loss", True, 600, 8,
            (0.001, 0.003, 0.006, 0.012),
        ), 0.012, "tinyshakespeare.txt",
    ),
    "gpt-text-wide": Workload(
        Task(
            "transformer of width 192, characters, AdamW", shakespeare, partial(Transformer, width=192), "loss", True,
            200, 8, (0.006,),
        ), 0.006, "tinyshakespeare.txt", 30, 4,
    ),
    "ncf-movielens": Workload(
        SgdTask(
            "NCF, MovieLens, SGD (Adagrad at 1/6000 of the rate for weights that are not embeddings)", movielens,
            Collaborative, "hits", False, 250, 1024, (300.0, 600.0, 1200.0),
        ), 600.0, "movielens-small.npz",
    ),
    "synthetic-25m": synthetic("25M"),
    "synthetic-1m": synthetic("small"),
    "synthetic-10k": synthetic("tiny"),
}  # fmt: skip
