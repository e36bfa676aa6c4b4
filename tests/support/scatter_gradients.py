"""What tests of `exchange=reduce_scatter` share: its routes, the head of its messages, a rank's gradient."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import make

ROUTES = ("direct", "log")
HEAD = 5  # bytes before a message's frames
every_route = pytest.mark.parametrize("route", ROUTES)


def gradient(rank: int, numel: int, step: int = 0) -> np.ndarray:
    return make("normal", numel, "float32", seed=100 * step + rank)
