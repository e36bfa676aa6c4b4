"""`Sparse`: the one thing that travels between the rooms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .kernels import Array, index_dtype

DTYPES = ("float32", "float64", "float16", "bfloat16")
LARGEST = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}


def work_dtype(dtype: str) -> np.dtype[np.floating]:
    """The dtype that arithmetic on a tensor of `dtype` is done in."""
    return np.dtype(np.float64 if dtype == "float64" else np.float32)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), (bits >> np.uint32(16)) | np.uint32(0x40), rounded).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def store(values: Array, dtype: str) -> Array:
    """Values as they are kept or sent in `dtype`; bfloat16, which NumPy lacks, as uint16.

    A finite number stays finite: an infinity must come from the gradient, never from rounding.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        safe = np.where(np.isinf(values), values, np.clip(values, -LARGEST[dtype], LARGEST[dtype]))
        if dtype == "bfloat16":
            return to_bfloat16(safe.astype(np.float32, copy=False))
        return safe.astype(dtype)


def load(stored: Array, dtype: str) -> Array:
    """The inverse of `store`, in the dtype that arithmetic uses."""
    if dtype == "bfloat16":
        return from_bfloat16(stored)
    with np.errstate(invalid="ignore"):
        return stored.astype(work_dtype(dtype), copy=False)


def round_to(values: Array, dtype: str) -> Array:
    """Values rounded to what `dtype` can hold, still in its work dtype."""
    return values if values.dtype == dtype else load(store(values, dtype), dtype)


def _kept(values: Array, dtype: str) -> Array:
    """Values as a `Sparse` holds them."""
    return round_to(values, dtype) if dtype == "bfloat16" else store(values, dtype)


@dataclass(frozen=True, eq=False)
class Sparse:
    """A tensor as ascending unique flat indices and the values there; everything else is zero.

    `dtype` names the tensor's number type. `values` has that type, but for bfloat16, which NumPy lacks: float32
    then, holding bfloat16 numbers.

    >>> Sparse([1, 4], [0.5, -2.0], (2, 3)).to_dense()
    array([[ 0. ,  0.5,  0. ],
           [ 0. , -2. ,  0. ]])
    """

    indices: Array
    values: Array
    shape: tuple[int, ...]
    dtype: str = field(default="")

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values)
        dtype = self.dtype or values.dtype.name
        if dtype not in DTYPES:
            raise InputError(f"values must be one of {', '.join(DTYPES)}, not {dtype}; convert them first")
        shape = tuple(int(n) for n in self.shape)
        if any(n < 0 for n in shape) or math.prod(shape) >= 2**63:
            raise InputError(f"a shape needs sizes ≥ 0 and fewer than 2**63 elements, not {shape}")
        if values.dtype.name == "bfloat16":
            values = from_bfloat16(values.view(np.uint16))
        indices = np.ascontiguousarray(self.indices)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "values", _kept(values, dtype))
        object.__setattr__(self, "indices", self._checked(indices, values, math.prod(shape)))

    @classmethod
    def trusted(cls, indices: Array, values: Array, shape: tuple[int, ...], dtype: str) -> Sparse:
        """Without any check or conversion: for entries that this library has just made itself."""
        sparse = object.__new__(cls)
        for name, value in (("indices", indices), ("values", values), ("shape", shape), ("dtype", dtype)):
            object.__setattr__(sparse, name, value)
        return sparse

    @staticmethod
    def _checked(indices: Array, values: Array, numel: int) -> Array:
        if indices.ndim != 1 or values.ndim != 1 or indices.size != values.size:
            raise InputError(f"{indices.shape} indices do not go with {values.shape} values; both are flat")
        if indices.size == 0:
            return np.empty(0, index_dtype(numel))
        if indices.dtype.kind not in "iu":
            raise InputError(f"indices are integers, not {indices.dtype}")
        if indices[0] < 0 or indices[-1] >= numel or not (indices[1:] > indices[:-1]).all():
            raise InputError(f"indices must ascend without repeats within 0 … {numel - 1}; np.unique sorts them")
        return indices.astype(index_dtype(numel), copy=False)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def count(self) -> int:
        return int(self.indices.size)

    @property
    def work_values(self) -> Array:
        """The values in the dtype that arithmetic uses."""
        return self.values.astype(work_dtype(self.dtype), copy=False)

    def to_dense(self) -> Array:
        """The dense array (float32 for bfloat16)."""
        out = np.zeros(self.numel, self.values.dtype)
        out[self.indices] = self.values
        return out.reshape(self.shape)

    def __repr__(self) -> str:
        return f"Sparse({self.count} of {self.numel} entries, shape={self.shape}, dtype={self.dtype})"
