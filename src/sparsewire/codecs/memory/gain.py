"""`gain`: global momentum with a gain that sets itself, for SGD with momentum μ.

Global momentum (`gmc`) equals SGD with momentum when everything is sent. When little is sent it is late: a gradient
counts 1/(1 − μ) times in all, and each time after the first has to wait to be selected again. Here a step hands out a
multiple γ at once, and takes that off what comes later:

1. The selected part C of U = residual + x is sent, unscaled; C̄ is its mean over the ranks.
2. The optimizer's momentum buffer becomes M = γ · C̄.
3. residual ← U − C + (1 − (1 − μ) · γ) · C̄
4. k = Σ C² / Σ U² over all compressed parameters of a rank; k̂ ← max(k, 0.98 · k̂ + 0.02 · k).
5. γ of the next step is the mean over the ranks of 1/√k̂, within 1 … 1/(1 − μ) (`sparsewire.training.residuals.gain`).

Whatever γ is, a gradient moves the weights 1/(1 − μ) times in all: the mean of the residuals changes by that of x, less
(1 − μ) · M. γ = 1 is `gmc`, γ = 1/(1 − μ) is error feedback without a momentum, at a rate of η/(1 − μ). With everything
sent k = 1 and γ = 1: SGD with momentum, exactly.

A dense step has γ = 1 and k = 1, and leaves μ · mean in the residual. The next dense step would then hand out the mean
gradient, as if nothing had been kept. So where the optimizer has the momentum μ, a dense step leaves nothing: SGD's own
buffer goes on with the momentum, and dense steps that follow are plain ones.

As with `dgc` and `gmc`, the optimizer is handed M_t − μ · M_{t−1}, and its own momentum buffer then equals M_t. From
the same numbers torch's SGD(nesterov=True) makes Nesterov's look-ahead, what it is handed + μ · buffer: it stays on. An
optimizer without a momentum is handed M_t, or with `nesterov` that look-ahead. M is a momentum of gradients, as SGD's
is, so a learning rate that changes changes nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.kernels import Array
from sparsewire.kernels.device import Energies

from ..contract import Feedback, LinearMemory, State, Terms, set_product


@dataclass(frozen=True)
class Gain(LinearMemory):
    """Global momentum with a gain that sets itself by the share of the energy that is sent."""

    id = "gain"
    wire_id = 5
    on_device = True
    buffers = ("residual",)
    remembers_dense = True
    leaves_dense = True
    follows_rate = False

    momentum: float = 0.9
    nesterov: bool = False

    def check(self) -> None:
        self.expect(0 <= self.momentum < 1, "momentum lies in 0 ≤ momentum < 1")

    @property
    def largest_gain(self) -> float:
        return 1 / (1 - self.momentum)

    @property
    def look_ahead(self) -> float:
        return self.momentum if self.nesterov else 0.0

    def terms(self, state: State) -> Terms:
        return Terms(state["residual"])

    def keep(self, state: State, x: Array, feedback: Feedback) -> Energies:
        return self.terms(state).keep_share(x, feedback, 1 - (1 - self.momentum) * feedback.gain)

    def keep_dense(self, state: State, x: Array, mean: Array) -> None:
        set_product(state["residual"], mean, self.momentum)
