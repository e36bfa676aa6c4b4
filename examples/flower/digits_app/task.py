"""The task, without a word about federated learning: data, a network of two layers, its training. NumPy only."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Array = NDArray[np.float32]
Labels = NDArray[np.int64]
Weights = dict[str, Array]
HIDDEN, BATCH, TESTED = 256, 16, 360


@cache
def data() -> tuple[Array, Labels]:
    """1,797 pictures of 8 × 8 points, shuffled, which come with scikit-learn."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (pixels[order] / 16).astype(np.float32), labels[order]


def partition(number: int, of: int) -> tuple[Array, Labels]:
    """A client's own part; the first pictures are nobody's."""
    pixels, labels = data()
    return pixels[TESTED + number :: of], labels[TESTED + number :: of]


def test_data() -> tuple[Array, Labels]:
    pixels, labels = data()
    return pixels[:TESTED], labels[:TESTED]


def initial_weights() -> Weights:
    numbers = np.random.default_rng(1)
    return {
        "hidden.weight": (numbers.standard_normal((64, HIDDEN)) / 8).astype(np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "out.weight": (numbers.standard_normal((HIDDEN, 10)) / HIDDEN**0.5).astype(np.float32),
        "out.bias": np.zeros(10, np.float32),
    }


def forward(weights: Weights, pixels: Array) -> tuple[Array, Array]:
    """(the hidden layer, the probabilities)."""
    hidden = np.maximum(pixels @ weights["hidden.weight"] + weights["hidden.bias"], 0)
    scores = hidden @ weights["out.weight"] + weights["out.bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def train(weights: Weights, pixels: Array, labels: Labels, epochs: int, rate: float, seed: int) -> float:
    """Plain SGD, in place; the mean loss."""
    numbers, losses = np.random.default_rng(seed), list[float]()
    for _ in range(epochs):
        order = numbers.permutation(len(labels))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            losses.append(_step(weights, pixels[part], labels[part], np.float32(rate)))
    return float(np.mean(losses))


def _step(weights: Weights, pixels: Array, labels: Labels, rate: np.float32) -> float:
    rows = np.arange(len(labels))
    hidden, chances = forward(weights, pixels)
    loss = -np.log(chances[rows, labels] + 1e-9).mean()
    chances[rows, labels] -= 1
    wrong = chances / np.float32(len(labels))
    back = (wrong @ weights["out.weight"].T) * (hidden > 0)
    for name, slope in (("out", wrong), ("hidden", back)):
        weights[f"{name}.weight"] -= rate * ((hidden if name == "out" else pixels).T @ slope)
        weights[f"{name}.bias"] -= rate * slope.sum(axis=0)
    return float(loss)


def accuracy(weights: Weights, pixels: Array, labels: Labels) -> float:
    return float((forward(weights, pixels)[1].argmax(axis=1) == labels).mean())
