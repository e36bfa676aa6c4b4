"""The trainings of `benchmarks/accuracy.py`: data, model, optimizer and settings of each.

Every task has three parts: what is trained on, what the learning rate is chosen by, and what is reported.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from sparsewire.errors import InputError
from sparsewire.lab.arrays import load_arrays

Part = tuple[torch.Tensor, torch.Tensor]  # inputs and targets
MOMENTUM = 0.9
WINDOW = 32  # tokens
TESTED = 1000  # windows
WORDS = 2000  # the most frequent; all others are one more
UNITS = {
    "accuracy": "test accuracy in %",
    "loss": "test loss in nats",
    "perplexity": "test perplexity",
    "hits": "hit rate in %: how often the right candidate is among the best 10",
}
HIGHER = ("accuracy", "hits")  # is better


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
        """What is done to a rank's replica before it is trained."""


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
    batches = zip(part[0].split(250), part[1].split(250), strict=True)
    mean = sum(len(x) * float(mean_of(model(x), y)) for x, y in batches) / len(part[0])
    return math.exp(mean) if score == "perplexity" else mean


# --- images ----------------------------------------------------------------------------------------------------------


def mnist(folder: Path) -> Data:
    """Pixels from 0 to 1; a twelfth of the training images is for choosing the rate."""
    arrays = load_arrays(folder / "mnist.npz")
    parts = [(torch.from_numpy(arrays[f"{part}_x"]).flatten(1).float().div(255),
              torch.from_numpy(arrays[f"{part}_y"].astype("i8"))) for part in ("train", "test")]  # fmt: skip
    return _images(*parts)


def cifar(folder: Path) -> Data:
    """12,000 images to train, 1,000 to choose the rate, 10,000 to test, at half their resolution."""
    from cifar import images

    arrays = load_arrays(folder / "cifar10-jpeg.npz")
    return _images(images(arrays, "train", 13_000), images(arrays, "test", 10_000))


def _images(train: Part, test: Part) -> Data:
    cut = len(train[0]) * 12 // 13
    return Data((train[0][:cut], train[1][:cut]), (train[0][cut:], train[1][cut:]), test, 10)


def perceptron(data: Data, hidden: Sequence[int] = (256, 256)) -> nn.Module:
    sizes = [data.train[0].shape[1], *hidden, data.classes]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def residual_network(data: Data) -> nn.Module:
    from cifar import resnet20

    return resnet20(torch.initial_seed())


# --- text ------------------------------------------------------------------------------------------------------------


def shakespeare(folder: Path) -> Data:
    """Characters; the last tenth is for testing, the twentieth before it for choosing the rate (1,000 windows each)."""
    text = read_text(folder / "tinyshakespeare.txt")
    return windows(list(text), sorted(set(text)))


def wikitext(folder: Path) -> Data:
    """Words."""
    words = read_text(folder / "wikitext2-a.txt").split()
    return windows(words, [word for word, _ in Counter(words).most_common(WORDS)])


def read_text(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if len(text) < 100 * WINDOW:
        raise InputError(f"{path} is too short to train on")
    return text


def windows(tokens: Sequence[str], known: Sequence[str]) -> Data:
    number = {token: place for place, token in enumerate(known)}
    ids = torch.tensor([number.get(token, len(known)) for token in tokens])
    first, second = len(ids) * 17 // 20, len(ids) * 18 // 20
    train, valid, test = (
        part.unfold(0, WINDOW + 1, stride)
        for part, stride in ((ids[:first], 1), (ids[first:second], WINDOW), (ids[second:], WINDOW))
    )
    parts = [(part[:, :-1], part[:, 1:]) for part in (train, valid[:TESTED], test[:TESTED])]
    return Data(parts[0], parts[1], parts[2], len(known) + 1)


class Transformer(nn.Module):
    """Layers with 4 heads that see only what came before."""

    mask: torch.Tensor

    def __init__(self, data: Data, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.classes, width)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, data.classes))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(WINDOW))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.embedding(x) + self.places
        for layer in self.layers:
            y = layer(y, src_mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(y)
        return logits


class Recurrent(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        self.embedding = nn.Embedding(data.classes, 128)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, data.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(self.embedding(x))[0])
        return logits


TASKS = {
    "mnist": Task(
        "MLP 784-256-256-10, MNIST, SGD", mnist, perceptron, "accuracy", False, 800, 32, (0.05, 0.1, 0.2, 0.4)
    ),
    "text": Task(
        "transformer, characters, AdamW", shakespeare, Transformer, "loss", True, 600, 8, (0.001, 0.003, 0.006, 0.012)
    ),
    "cifar": Task(
        "ResNet-20, CIFAR-10, SGD", cifar, residual_network, "accuracy", False, 600, 32, (0.02, 0.05, 0.1, 0.2)
    ),
    "lstm": Task("LSTM, words of WikiText-2, SGD", wikitext, Recurrent, "loss", False, 600, 8, (0.1, 0.3, 1.0)),
}
