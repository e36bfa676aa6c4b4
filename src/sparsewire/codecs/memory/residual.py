"""`residual`: what was not sent is added to the next gradient (error feedback)."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import LinearMemory, State, Terms


@dataclass(frozen=True)
class Residual(LinearMemory):
    """Error feedback: a = decay · residual + x is selected from, and residual ← a − sent.

    `decay` below 1 forgets old errors, as SparseLoCo (0.95) and DeMo (0.999) do; for training with an exchange in every
    step it costs accuracy.
    """

    id = "residual"
    wire_id = 2
    on_device = True
    buffers = ("residual",)

    decay: float = 1.0

    def check(self) -> None:
        self.expect(0 <= self.decay <= 1, "decay lies in 0 … 1")

    def terms(self, state: State) -> Terms:
        return Terms(state["residual"], self.decay)
