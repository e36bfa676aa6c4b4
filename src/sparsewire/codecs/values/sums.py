"""Means whose last bit is the same everywhere: the order of their sums is defined."""

from __future__ import annotations

import numpy as np

from sparsewire.kernels import Array


def mean(values: Array) -> float:
    """Summed in order in float64, as multiples of the largest magnitude, so that nothing overflows."""
    top = float(np.abs(values).max(initial=0))
    if top == 0:
        return 0.0
    return float(np.add.accumulate(values.astype(np.float64) / top)[-1] / values.size * top)
