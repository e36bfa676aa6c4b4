"""`error_budget`: as few entries as a wanted error of the step allows, tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array

from ..contract import Context, Select


@dataclass(frozen=True)
class ErrorBudget(Select):
    """The fewest largest entries without which at most `bound` of the tensor's norm is left: ‖x − sent‖ ≤ bound · ‖x‖.

    A transform is orthonormal, so that this holds for the gradient behind it as well; what the value codec rounds comes
    on top. SuperNeurons' ratio θ (arXiv 1811.08596) is so found anew in every step. What is not finite is sent alone.
    """

    id = "error_budget"
    wire_id = 7

    bound: float = 0.5

    def check(self) -> None:
        sound = self.bound == 0 or 1e-6 <= self.bound < 1
        self.expect(sound, "bound lies in 0.000001 … 1, below 1, or is 0 for all that is not zero")

    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        if self.bound == 0:
            return kernels.threshold(x, 1, threads=kernels.threads)
        count = kernels.energy_count(x, self.bound**2)
        if count < 0:
            return kernels.threshold(x, kernels.magnitude_edge(np.inf, x.dtype), threads=kernels.threads)
        return kernels.topk(x, count, threads=kernels.threads)
