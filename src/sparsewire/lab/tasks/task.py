"""A task: data, model, optimizer, settings, and the score of a training.

Every task has three parts: what is trained on, what the learning rate is chosen by, and what is reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

Part = tuple[torch.Tensor, torch.Tensor]  # inputs and targets
MOMENTUM = 0.9
LARGEST = 700.0  # nats, of which exp is still a number


@dataclass(frozen=True)
class Data:
    train: Part
    valid: Part
    test: Part
    classes: int


@dataclass(frozen=True)
class Task:
    """A training; `score` is one of `UNITS`, `batch` a rank's."""

    what: str
    load: Callable[[Path], Data]
    model: Callable[[Data], nn.Module]
    score: str
    adam: bool
    steps: int
    batch: int
    rates: tuple[float, ...]

    def rate_at(self, rate: float, done: float) -> float:
        """The learning rate when this share of the steps is done: it falls linearly to 0, with Adam after a rise."""
        return rate * (min(10 * done, (1 - done) / 0.9) if self.adam else 1 - done)

    def optimizer(self, model: nn.Module, rate: float) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.AdamW(model.parameters(), rate)
        return torch.optim.SGD(model.parameters(), rate, momentum=MOMENTUM)

    def prepare(self, model: nn.Module) -> None:
        """Prepares a rank's replica for training."""


def loss_of(model: nn.Module, part: Part) -> torch.Tensor:
    """Mean cross entropy in nats."""
    return _cross_entropy(model(part[0]), part[1])


def _cross_entropy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), y.flatten())


def _accuracy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(-1) == y).float().mean()


def _hits(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Whoever is not worse than the right one stands before it, so that equal scores, or NaN, are no hit."""
    return ((~(logits < logits.gather(1, y[:, None]))).sum(1) <= 10).float().mean()


@torch.no_grad()
def evaluate(model: nn.Module, part: Part, score: str) -> float:
    """The score of a part of the data."""
    model.eval()
    mean_of = {"accuracy": _accuracy, "hits": _hits}.get(score, _cross_entropy)
    batches = zip(torch.split(part[0], 250), torch.split(part[1], 250), strict=True)
    mean = sum(len(x) * float(mean_of(model(x), y)) for x, y in batches) / len(part[0])
    return math.exp(min(mean, LARGEST)) if score == "perplexity" else mean


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """A multi-layer perceptron."""
    layers: list[nn.Module] = []
    for width, following in itertools.pairwise(sizes):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
