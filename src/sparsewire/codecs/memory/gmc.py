"""`gmc`: global momentum compression (Zhao et al., arXiv 1905.12948).

The momentum is that of the common weights, which every rank knows: the compensated gradient is
residual + x − (momentum/η_t)(w_t − w_{t−1}). Without weight decay the last term is momentum · (η_{t−1}/η_t) · mean of
the step before. Adding momentum · mean to the residual after each step is all it takes, and no second buffer:

1. The selected part of residual + x is sent.
2. residual ← residual + x − sent + momentum · mean

When the learning rate η changes, whoever knows it adds the difference to the next gradient x
(`sparsewire.training.residuals.momentum`).
As with `dgc`, the mean already holds the momentum.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.kernels import Array

from ..contract import Feedback, LinearMemory, State, Terms, set_product


@dataclass(frozen=True)
class GMC(LinearMemory):
    """Error feedback with the momentum of the common weights, for SGD with momentum."""

    id = "gmc"
    wire_id = 4
    on_device = True
    buffers = ("residual",)
    remembers_dense = True
    follows_rate = False

    momentum: float = 0.9

    def check(self) -> None:
        self.expect(0 <= self.momentum < 1, "momentum lies in 0 ≤ momentum < 1")

    @property
    def kept_mean(self) -> float:
        return self.momentum

    def terms(self, state: State) -> Terms:
        return Terms(state["residual"])

    def keep(self, state: State, x: Array, feedback: Feedback) -> None:
        super().keep(state, x, feedback)
        feedback.add_mean(state["residual"], self.kept_mean)

    def keep_dense(self, state: State, x: Array, mean: Array) -> None:
        set_product(state["residual"], mean, self.kept_mean)
