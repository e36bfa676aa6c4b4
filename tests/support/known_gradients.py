"""Gradients whose nature is known: one that neighbours share, one without any order."""

from __future__ import annotations

import numpy as np

SIZE = 8192


def correlated(size: int = SIZE, seed: int = 0) -> np.ndarray:
    """An autoregressive process: 0.9 of the element before, and noise."""
    weights = 0.9 ** np.arange(100)
    noise = np.random.default_rng(seed).standard_normal(size + weights.size - 1)
    return np.convolve(noise, weights, "valid").astype(np.float32)


def laplace(size: int = SIZE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).laplace(size=size).astype(np.float32)
