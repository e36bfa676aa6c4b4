"""The dense-sized kernels of a step for the memory where a tensor lives: one contract, three implementations.

`of(x)` gives the native ones for a NumPy array; for a torch tensor those of torch's operations, which run on any device,
or on CUDA and ROCm the Triton kernels, if `triton` is installed. All give the bits of `kernels.reference`.

`SPARSEWIRE_DEVICE_KERNELS=torch` takes torch's operations everywhere. `TRITON_INTERPRET=1`, set before the start, has
Triton's interpreter run the Triton kernels on CPU tensors.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any, cast

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
    return load("triton_ops" if _suits_triton(x) else "torch_ops")


@functools.cache
def load(name: str) -> DenseKernels:
    """The module of kernels of that name: `host`, `torch_ops` or `triton_ops`."""
    return cast(DenseKernels, importlib.import_module(f".{name}", __name__))


def _suits_triton(x: Any) -> bool:
    if os.environ.get("SPARSEWIRE_DEVICE_KERNELS") == "torch" or not _has_triton():
        return False
    return x.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"  # ROCm calls its devices "cuda" as well


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
