"""The selection that a test compares with, by brute force."""

from __future__ import annotations

import numpy as np


def largest(x: np.ndarray, k: int) -> list[int]:
    """Brute force: by magnitude, NaN above inf above numbers, then by position."""

    def rank(i: int) -> tuple[bool, float, int]:
        return not np.isnan(x[i]), -abs(float(x[i])) if not np.isnan(x[i]) else 0.0, i

    return sorted(sorted(range(x.size), key=rank)[:k])
