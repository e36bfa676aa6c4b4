"""A memory from outside, with two buffers: error feedback, and the sum of all means that it was told of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire.codecs.contract import Feedback, Memory, State


@dataclass(frozen=True)
class Told(Memory):
    """residual ← residual + x − sent; moved ← moved + mean."""

    id = "told"
    buffers = ("residual", "moved")

    def total(self, state: State, x: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return state["residual"] + x

    def keep(self, state: State, x: np.ndarray, feedback: Feedback) -> None:
        state["residual"] += x
        feedback.subtract_sent(state["residual"])
        feedback.add_mean(state["moved"], 1.0)
