"""`rows`: neighbouring elements as one entry, such as the rows of an embedding table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense

from ..contract import Transform

WIDEST = 1024  # numbers of an entry whose squares a device adds up one after the other


@dataclass(frozen=True)
class Rows(Transform):
    """Every `width` elements are one entry, with one index, selected by its Euclidean norm; zeros fill the last."""

    id = "rows"
    wire_id = 2

    width: int = 64  # type: ignore[misc, assignment]

    def check(self) -> None:
        self.expect(1 <= self.width <= 2**20, "width lies in 1 … 2**20")

    @property
    def on_device(self) -> bool:
        return self.width <= WIDEST

    def size(self, numel: int) -> int:
        return -(-numel // self.width)

    def forward(self, x: Dense) -> Dense:
        missing = self.size(x.size) * self.width - x.size
        if not kernels.on_host(x):
            return x.padded(missing)
        return np.append(x, np.zeros(missing, x.dtype)) if missing else x

    def inverse(self, coefficients: Array, numel: int) -> Array:
        return coefficients[:numel]
