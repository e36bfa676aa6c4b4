"""`identity`: the gradient as it is."""

from __future__ import annotations

from dataclasses import dataclass

from sparsewire.kernels import Array

from ..contract import Transform


@dataclass(frozen=True)
class Identity(Transform):
    """No transform."""

    id = "identity"
    wire_id = 1
    is_identity = True

    def size(self, numel: int) -> int:
        return numel

    def forward(self, x: Array) -> Array:
        return x

    def inverse(self, coefficients: Array, numel: int) -> Array:
        return coefficients
