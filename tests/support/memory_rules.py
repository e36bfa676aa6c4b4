"""Sizes and the selection that the tests of memories share."""

from __future__ import annotations

import numpy as np

STEPS, NUMEL, K = 12, 300, 15


def selected(total: np.ndarray) -> np.ndarray:
    """The mask of the K largest."""
    chosen = np.zeros(total.size, bool)
    chosen[np.argsort(-np.abs(total), kind="stable")[:K]] = True
    return chosen


class SGD:
    """torch's SGD with momentum on NumPy arrays, with weight decay."""

    def __init__(self, momentum: float = 0.9, decay: float = 0.01) -> None:
        self.momentum, self.decay, self.rate = momentum, decay, 0.1
        self.buffers: dict[str, np.ndarray] = {}

    def step(self, weights: dict[str, np.ndarray], handed: dict[str, np.ndarray]) -> None:
        for name, g in handed.items():
            g = g.astype(np.float64) + self.decay * weights[name]
            self.buffers[name] = self.momentum * self.buffers.get(name, 0) + g
            weights[name] = weights[name] - self.rate * self.buffers[name]
