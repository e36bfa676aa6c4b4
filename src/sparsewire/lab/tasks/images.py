"""Tasks on images: MNIST, CIFAR-10 and the small digits that need no file."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from sparsewire.errors import InputError

from .. import measure
from ..arrays import load_arrays
from .task import Data, Part, mlp

HELD_OUT = 3  # a third of the digits is held out for testing


# --- data --------------------------------------------------------------------------------------------------------


def digits() -> tuple[Any, ...]:
    """scikit-learn's 1,797 digits of 8 × 8 pixels: images and labels to train on, and to test."""
    if not measure.has("sklearn"):
        raise InputError("the digits need scikit-learn: pip install scikit-learn")
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    test, rest = order[: len(x) // HELD_OUT], order[len(x) // HELD_OUT :]
    return x[rest], y[rest], x[test], y[test]


def small_digits(folder: Path) -> Data:
    """Pixels from 0 to 1; so few that nothing is kept apart for choosing the rate."""
    x, y, test_x, test_y = digits()
    train, test = ((torch.from_numpy(a.astype("f4") / 16), torch.from_numpy(b)) for a, b in ((x, y), (test_x, test_y)))
    return Data(train, test, test, 10)


def mnist(folder: Path) -> Data:
    """Pixels from 0 to 1; a twelfth of the training images is for choosing the rate."""
    arrays = load_arrays(folder / "mnist.npz")
    parts = [(torch.from_numpy(arrays[f"{part}_x"]).flatten(1).float().div(255),
              torch.from_numpy(arrays[f"{part}_y"].astype("i8"))) for part in ("train", "test")]  # fmt: skip
    return _images(*parts)


def cifar(folder: Path) -> Data:
    """12,000 images to train, 1,000 to choose the rate, 10,000 to test, at half their resolution."""
    arrays = load_arrays(folder / "cifar10-jpeg.npz")
    return _images(images(arrays, "train", 13_000), images(arrays, "test", 10_000))


def _images(train: Part, test: Part) -> Data:
    cut = len(train[0]) * 12 // 13
    return Data((train[0][:cut], train[1][:cut]), (train[0][cut:], train[1][cut:]), test, 10)


def images(arrays: dict[str, Any], part: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `count` images of a part at half their resolution, from −2 to 2, and their classes."""
    from PIL import Image

    offsets, body = arrays[f"{part}_offsets"][: count + 1].tolist(), arrays[f"{part}_jpeg"].tobytes()
    pictures = (Image.open(io.BytesIO(body[start:end])) for start, end in itertools.pairwise(offsets))
    pixels = [torch.frombuffer(bytearray(picture.convert("RGB").tobytes()), dtype=torch.uint8) for picture in pictures]
    x = functional.avg_pool2d(torch.stack(pixels).view(-1, 32, 32, 3).permute(0, 3, 1, 2).float(), 2).div(64).sub(2)
    y = torch.from_numpy(arrays[f"{part}_labels"][:count].astype("i8"))
    return x.contiguous(memory_format=torch.channels_last), y


# --- models ------------------------------------------------------------------------------------------------------


def perceptron(data: Data, hidden: Sequence[int] = (256, 256)) -> nn.Module:
    return mlp([data.train[0].shape[1], *hidden, data.classes])


def lenet(data: Data) -> nn.Module:
    """LeNet-5 with ReLU and max pooling, for rows of 784 pixels."""
    convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), *convolutions, nn.MaxPool2d(2), nn.Flatten(), mlp([400, 120, 84, data.classes])
    )


class Block(nn.Module):
    """A residual block of two convolutions; the shortcut is subsampled where the first convolution has a stride."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.stride = outside // inside
        self.first = nn.Conv2d(inside, outside, 3, self.stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return functional.relu(y + functional.pad(shortcut, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1])))


def resnet20(data: Data | None = None) -> nn.Sequential:
    """For images of any size in ten classes."""
    widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
    blocks = [Block(inside, outside) for inside, outside in itertools.pairwise(widths)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    network = nn.Sequential(*stem, *blocks, *head)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]
