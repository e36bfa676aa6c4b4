"""Scenes of a link whose Fourier transforms torch computes. Here that is on the CPU, as no accelerator is at hand."""

from __future__ import annotations

import sys

import numpy as np
import torch
from scenes_attach import loses_nothing, stays_in_step
from torch_ranks import Stage

from sparsewire.torch import theta_schedule
from sparsewire.torch.ddp.fourier import TorchFourier


class Counting(TorchFourier):
    """Which transforms were asked for."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.asked: set[str] = set()

    def forward(self, rows: np.ndarray, length: int) -> np.ndarray:
        self.asked.add("forward")
        return super().forward(rows, length)

    def inverse(self, spectra: np.ndarray, length: int) -> np.ndarray:
        self.asked.add("inverse")
        return super().inverse(spectra, length)


def computes(stage: Stage, scheme: str) -> list[str]:
    """Ranks stay in step, and nothing is lost."""
    module, engine = sys.modules["sparsewire.torch.ddp.opening"], Counting()
    kept = module.fourier_for
    module.fourier_for = lambda *_: engine
    try:
        stays_in_step(stage, scheme, steps=8)
        loses_nothing(stage, scheme)
    finally:
        module.fourier_for = kept
    return sorted(engine.asked)


def follows_a_function(stage: Stage) -> float:
    """θ as a function, which is another object on every rank."""
    return stays_in_step(stage, "superneurons", steps=6, ratio_schedule=theta_schedule(lambda step: 0.9 - step / 10))
