"""`dgc`: momentum correction of Deep Gradient Compression (Lin et al., arXiv 1712.01887).

Error feedback delays a coordinate and then delivers the sum, which acts like a momentum; a second one behind it, in the
optimizer, costs accuracy. So the momentum moves in front of the selection, on each rank:

1. velocity ← momentum · velocity + x (Nesterov: momentum · (velocity + x))
2. residual ← residual + velocity (Nesterov: + x)
3. The selected part of the residual is sent, and taken from it.
4. Where something was sent, the velocity is set to zero (factor masking), so that stale momentum does not go on.

The mean M of what is sent already holds the momentum; the optimizer is handed M_t − momentum · M_{t−1}, and its own
momentum buffer then equals M_t.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Feedback, LinearMemory, State, Terms
from ..kernels import Array


@dataclass(frozen=True)
class DGC(LinearMemory):
    """Momentum correction and factor masking, for SGD with momentum."""

    id = "dgc"
    wire_id = 3
    buffers = ("velocity", "residual")
    remembers_dense = True

    momentum: float = 0.9
    nesterov: bool = False
    mask: bool = True

    def check(self) -> None:
        self.expect(0 <= self.momentum < 1, "momentum lies in 0 ≤ momentum < 1")

    def terms(self, state: State) -> Terms:
        return Terms(state["residual"], 1.0, state["velocity"], self.momentum, self.nesterov)

    def keep(self, state: State, x: Array, feedback: Feedback) -> None:
        self.terms(state).compensate(x)
        feedback.take_sent(state["residual"])
        sent_at = feedback.sent_at
        if self.mask and sent_at is not None:
            state["velocity"][sent_at] = 0

    def keep_dense(self, state: State, x: Array, mean: Array) -> None:
        self.terms(state).compensate(x)
        state["residual"][:] = 0
