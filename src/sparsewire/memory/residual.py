"""`residual`: what was not sent is added to the next gradient (error feedback)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..contract import Context, Feedback, Memory, Select, State
from ..kernels import Array
from ..kernels.scratch import scratch


@dataclass(frozen=True)
class Residual(Memory):
    """Error feedback: a = decay · residual + x is selected from, and residual ← a − sent.

    `decay` below 1 forgets old errors, as SparseLoCo (0.95) and DeMo (0.999) do; for training with an exchange in every
    step it costs accuracy.
    """

    id = "residual"
    wire_id = 2
    buffers = ("residual",)

    decay: float = 1.0

    def check(self) -> None:
        self.expect(0 <= self.decay <= 1, "decay lies in 0 … 1")

    def total(self, state: State, x: Array) -> Array:
        return self._compensate(state["residual"], x, scratch(x.size, x.dtype))

    def pick(self, select: Select, state: State, x: Array, ctx: Context) -> tuple[Array, Array]:
        if self.decay == 1:
            return select.pick_sum(state["residual"], x, ctx)
        return super().pick(select, state, x, ctx)

    def keep(self, state: State, x: Array, feedback: Feedback) -> None:
        self._compensate(state["residual"], x, state["residual"])
        feedback.take_sent(state["residual"])

    def _compensate(self, residual: Array, x: Array, out: Array) -> Array:
        with np.errstate(all="ignore"):
            if self.decay != 1:
                residual = np.multiply(residual, x.dtype.type(self.decay), out=out)
            return np.add(residual, x, out=out)
