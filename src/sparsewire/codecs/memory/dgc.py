"""`dgc`: momentum correction of Deep Gradient Compression (Lin et al., arXiv 1712.01887).

Error feedback delays a coordinate and then delivers the sum, which acts like a momentum; a second one behind it, in the
optimizer, costs accuracy. So the momentum moves in front of the selection, on each rank:

1. velocity ← momentum · velocity + x
2. total ← rest + velocity (Nesterov: rest + momentum · velocity + x)
3. The selected part of the total is sent; rest ← total − sent.
4. Where something was sent, the velocity is set to zero (factor masking), so that stale momentum does not go on.

The buffer `residual` is the rest and what the next step will add of this velocity: rest + momentum · velocity
(Nesterov: rest + momentum² · velocity). The total of the next step is then residual + x (Nesterov:
residual + (1 + momentum) · x), and the selection reads two arrays, as without a velocity.

Masking acts on whatever is sent, so it takes the momentum away in steps that send much, as at the dense-like start of a
schedule; with everything sent it leaves none. `mask=false` is momentum correction alone: with everything sent, SGD with
momentum. Dense warm-up steps do not mask.

The mean M of what is sent already holds the momentum; the optimizer is handed M_t − momentum · M_{t−1}, and its own
momentum buffer then equals M_t.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.kernels import Array

from ..contract import LinearMemory, State, Terms, set_product


@dataclass(frozen=True)
class DGC(LinearMemory):
    """Momentum correction and factor masking, for SGD with momentum."""

    id = "dgc"
    wire_id = 3
    on_device = True
    buffers = ("velocity", "residual")
    remembers_dense = True

    momentum: float = 0.9
    nesterov: bool = False
    mask: bool = True

    def check(self) -> None:
        self.expect(0 <= self.momentum < 1, "momentum lies in 0 ≤ momentum < 1")

    @property
    def lead(self) -> float:
        return self.momentum**2 if self.nesterov else self.momentum

    def terms(self, state: State) -> Terms:
        gain = 1 + self.momentum if self.nesterov else 1.0
        return Terms(state["residual"], 1.0, gain, state["velocity"], self.momentum, self.lead, self.mask)

    def keep_dense(self, state: State, x: Array, mean: Array) -> None:
        terms, velocity = self.terms(state), state["velocity"]
        velocity *= x.dtype.type(terms.momentum)
        velocity += x
        set_product(state["residual"], velocity, terms.lead)
