"""A transform from outside: sums and differences of neighbours, an orthonormal map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire.codecs.contract import Transform


@dataclass(frozen=True)
class Haar(Transform):
    """(a + b)/√2 and (a − b)/√2 of every two elements; `pairs` makes them one entry of two numbers."""

    id = "haar"
    pairs: bool = False

    @property
    def width(self) -> int:
        return 2 if self.pairs else 1

    def size(self, numel: int) -> int:
        return (numel + 1) // 2 * (1 if self.pairs else 2)

    def forward(self, x: np.ndarray) -> np.ndarray:
        return self._turn(np.append(x, np.zeros(x.size % 2, x.dtype)))

    def inverse(self, coefficients: np.ndarray, numel: int) -> np.ndarray:
        return self._turn(coefficients)[:numel]

    def _turn(self, x: np.ndarray) -> np.ndarray:
        a, b = x[::2], x[1::2]
        with np.errstate(all="ignore"):
            return (np.stack([a + b, a - b], axis=1) * x.dtype.type(0.5**0.5)).reshape(-1)
