"""An array, and a file that it is saved in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)


@pytest.fixture
def saved(tmp_path: Path, x: np.ndarray) -> Path:
    np.save(tmp_path / "w.npy", x)
    return tmp_path / "w.npy"
