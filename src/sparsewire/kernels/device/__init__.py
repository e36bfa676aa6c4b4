"""The dense-sized kernels of a step for the memory where a tensor lives: one contract, two implementations.

`of(x)` gives the native ones for a NumPy array, and those of torch's operations, which run on any device, for a tensor.
Both give the bits of `kernels.reference`.
"""

from __future__ import annotations

import functools
import importlib
from typing import cast

import numpy as np

from .contract import Candidates, Dense, DenseKernels, Energies, Energy, Entries

__all__ = ["Candidates", "Dense", "DenseKernels", "Energies", "Energy", "Entries", "load", "of"]


def of(x: Dense) -> DenseKernels:
    """The kernels for the memory that `x` lies in.

    >>> of(np.zeros(3, np.float32)).NAME
    'host'
    """
    if isinstance(x, np.ndarray):
        return load("host")
    return load("torch_ops")


@functools.cache
def load(name: str) -> DenseKernels:
    """The module of kernels of that name: `host` or `torch_ops`."""
    return cast(DenseKernels, importlib.import_module(f".{name}", __name__))
