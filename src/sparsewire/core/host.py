"""A framework's tensor as a flat NumPy array, and back. No framework is imported: a tensor brings its own.

NumPy, torch (dense or COO), TensorFlow (dense or IndexedSlices), JAX, and whatever `np.asarray` takes.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.errors import InputError
from sparsewire.kernels import Array

from .sparse import DTYPES, Sparse, from_bfloat16, store, work_dtype

UNTYPED = np.dtype("V2")  # what np.load makes of a file of ml_dtypes' bfloat16


@dataclass(frozen=True)
class Dense:
    """A dense tensor on the host: `flat` in the work dtype (the tensor's own memory where that is possible)."""

    flat: Array
    dtype: str
    shape: tuple[int, ...]


def to_host(x: Any) -> Dense | Sparse:
    """The tensor as this library works on it.

    >>> to_host(np.ones((2, 2), np.float16)).dtype
    'float16'
    """
    if isinstance(x, Sparse):
        return x
    if _is_torch(x):
        return _from_torch(x)
    if hasattr(x, "dense_shape") and hasattr(x, "indices"):
        return _from_rows(np.asarray(x.indices), np.asarray(x.values), tuple(np.asarray(x.dense_shape)))
    return _from_numpy(np.asarray(x))


def like(x: Any, flat: Array, dense: Dense) -> Any:
    """A flat array in the work dtype as a tensor of the kind, dtype and shape of `x` (NumPy unless torch)."""
    stored = store(flat, dense.dtype).reshape(dense.shape)
    if _is_torch(x):
        torch = sys.modules["torch"]
        tensor = torch.from_numpy(stored.view(np.int16) if dense.dtype == "bfloat16" else stored)
        return (tensor.view(torch.bfloat16) if dense.dtype == "bfloat16" else tensor).to(x.device)
    own = getattr(x, "dtype", None)
    return stored.view(own) if isinstance(own, np.dtype) and _is_bfloat16(own) else stored


def shares_memory(x: Any, flat: Array) -> bool:
    """Whether the flat array is the tensor's own memory."""
    start = x.data_ptr() if _is_torch(x) else np.asarray(x).ctypes.data
    return bool(start == flat.ctypes.data)


def is_writable(x: Any) -> bool:
    """Whether a result can be written into the tensor."""
    return x.flags.writeable if isinstance(x, np.ndarray) else _is_torch(x)


def write_back(residual: Any, flat: Array) -> None:
    """Puts a flat array in the work dtype into a residual that could not be worked on in place."""
    if _is_torch(residual):
        residual.detach().copy_(sys.modules["torch"].from_numpy(flat).view(residual.shape))
    elif _is_bfloat16(residual.dtype):
        residual[...] = store(flat, "bfloat16").view(residual.dtype).reshape(residual.shape)
    else:
        residual[...] = flat.reshape(residual.shape)


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _from_torch(x: Any) -> Dense | Sparse:
    torch = sys.modules["torch"]
    x = x.detach().cpu()
    if x.layout == torch.sparse_coo:
        return _from_coo(x.coalesce())
    if x.layout != torch.strided:
        raise InputError(f"torch layout {x.layout} is not supported; use dense or COO (x.to_sparse_coo())")
    if x.dtype == torch.bfloat16:
        return _bfloat16(x.contiguous().view(torch.int16).numpy(), tuple(x.shape))
    return _from_numpy(x.contiguous().numpy())


def _from_coo(x: Any) -> Sparse:
    """Entries of a COO tensor are elements, or whole rows of its dense dimensions."""
    indices, values = x.indices().numpy(), x.values()
    rows = indices[0] if len(indices) == 1 else np.ravel_multi_index(tuple(indices), x.shape[: x.sparse_dim()])
    host = _from_torch(values)
    assert isinstance(host, Dense)
    return _rows(rows.astype(np.int64), host, tuple(x.shape), math.prod(x.shape[x.sparse_dim() :]))


def _from_rows(rows: Array, values: Array, shape: tuple[Any, ...]) -> Sparse:
    """TensorFlow's IndexedSlices: rows in any order, repeated rows are summed."""
    host = _from_numpy(values)
    unique, place = np.unique(rows.astype(np.int64), return_inverse=True)
    width = math.prod(int(n) for n in shape[1:])
    summed = np.zeros((unique.size, width), host.flat.dtype)
    np.add.at(summed, place, host.flat.reshape(-1, width))
    return _rows(unique, Dense(summed.reshape(-1), host.dtype, ()), tuple(int(n) for n in shape), width)


def _rows(rows: Array, values: Dense, shape: tuple[int, ...], width: int) -> Sparse:
    """A row without numbers is nothing to send."""
    return Sparse(rows if width else rows[:0], values.flat, shape, values.dtype, max(1, width))


def _from_numpy(x: Array) -> Dense:
    if _is_bfloat16(x.dtype):
        return _bfloat16(np.ascontiguousarray(x).view(np.uint16), x.shape)
    if x.dtype.name not in DTYPES:
        advice = ", e.g. x.astype('float32')" if x.dtype.kind in "biuf" else ""
        raise InputError(f"gradients are {', '.join(DTYPES)}, not {x.dtype}; convert first{advice}")
    flat = np.ascontiguousarray(x).reshape(-1).astype(work_dtype(x.dtype.name), copy=False)
    return Dense(flat, x.dtype.name, x.shape)


def _is_bfloat16(dtype: np.dtype[Any]) -> bool:
    return dtype.name == "bfloat16" or dtype == UNTYPED


def _bfloat16(bits: Array, shape: tuple[int, ...]) -> Dense:
    return Dense(from_bfloat16(bits.reshape(-1).view(np.uint16)), "bfloat16", shape)
