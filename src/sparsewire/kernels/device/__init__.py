"""The dense-sized kernels of a step for the memory where a tensor lives: one contract, three implementations.

`of(x)` gives the native ones for a NumPy array, those of Triton for a CUDA or ROCm tensor where `triton` is installed,
and those of torch's operations for any other tensor. All are held to the bits of `kernels.reference`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
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
    return load("triton_ops" if x.is_cuda and _has_triton() else "torch_ops")


@functools.cache
def _has_triton() -> bool:
    """Whether there is a Triton whose histogram takes a mask: 3.4 or later."""
    if importlib.util.find_spec("triton") is None:
        return False
    major, minor = importlib.import_module("triton").__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 4)


@functools.cache
def load(name: str) -> DenseKernels:
    """The module of kernels of that name: `host`, `torch_ops` or `triton_ops`."""
    return cast(DenseKernels, importlib.import_module(f".{name}", __name__))
