"""`Sparse`: indices and values, the one type that passes between the modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsewire import kernels
from sparsewire.errors import InputError
from sparsewire.kernels import Array, index_dtype
from sparsewire.kernels.device import Dense
from sparsewire.kernels.scratch import recycled

DTYPES = ("float32", "float64", "float16", "bfloat16")
MOST_BESIDE_ZERO = 2**60  # times eight bytes is more than an address has bits for
LARGEST = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}


def is_shape(shape: Sequence[int]) -> bool:
    """Whether a tensor can have these sizes. NumPy multiplies the sizes of an empty tensor, too, but for the zeros.

    >>> is_shape((2, 3)), is_shape((0, 3)), is_shape((0, 2**62, 2**62))
    (True, True, False)
    """
    others = math.prod(size for size in shape if size)
    return min(shape, default=0) >= 0 and others < (2**63 if all(shape) else MOST_BESIDE_ZERO)


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


def held(values: Array, dtype: str) -> Array:
    """Values as a `Sparse` of that dtype holds them."""
    return round_to(values, dtype) if dtype == "bfloat16" else store(values, dtype)


class Domain(Protocol):
    """What a `Sparse` of coefficients needs of its transform."""

    @property
    def width(self) -> int: ...

    @property
    def on_device(self) -> bool: ...

    def size(self, numel: int) -> int: ...

    def inverse(self, coefficients: Array, numel: int) -> Array: ...

    def inverse_sparse(self, indices: Array, values: Array, numel: int) -> Array: ...


@dataclass(frozen=True, eq=False)
class Sparse:
    """A tensor as ascending unique indices of entries and the values there; everything else is zero.

    An entry is one element, or `width` numbers side by side, such as a row of an embedding table: index i then stands
    for the elements i · width … (i + 1) · width − 1. With a `transform` the entries are its coefficients, and
    `to_dense()` undoes it. `values` is flat, `width` numbers for each index. `dtype` names the tensor's number type;
    `values` has that type, but for bfloat16, which NumPy lacks: float32 then, holding bfloat16 numbers.

    >>> Sparse([1, 4], [0.5, -2.0], (2, 3)).to_dense()
    array([[ 0. ,  0.5,  0. ],
           [ 0. , -2. ,  0. ]])
    >>> Sparse([1], [1.0, 2.0, 3.0], (2, 3), width=3).to_dense()
    array([[0., 0., 0.],
           [1., 2., 3.]])
    """

    indices: Array
    values: Array
    shape: tuple[int, ...]
    dtype: str = field(default="")
    width: int = 1
    transform: Domain | None = None

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values)
        dtype = self.dtype or values.dtype.name
        if dtype not in DTYPES:
            raise InputError(f"values must be one of {', '.join(DTYPES)}, not {dtype}; convert them first")
        shape = tuple(int(n) for n in self.shape)
        if not is_shape(shape):
            most = "2**63 elements (2**60 beside a size of 0)"
            raise InputError(f"a shape needs sizes ≥ 0 and fewer than {most}, not {shape}")
        if values.dtype.name == "bfloat16":
            values = from_bfloat16(values.view(np.uint16))
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "values", held(values, dtype))
        self._check_width()
        object.__setattr__(self, "indices", self._checked(np.ascontiguousarray(self.indices)))

    @classmethod
    def trusted(
        cls, indices: Array, values: Array, shape: tuple[int, ...], dtype: str, width: int = 1,
        transform: Domain | None = None,
    ) -> Sparse:  # fmt: skip
        """Without any check or conversion: for entries that this library has just made itself."""
        sparse = object.__new__(cls)
        given = {"indices": indices, "values": values, "shape": shape, "dtype": dtype, "width": width}
        for name, value in {**given, "transform": transform}.items():
            object.__setattr__(sparse, name, value)
        return sparse

    def like(self, indices: Array, values: Array) -> Sparse:
        """Other entries of a tensor of the same kind; without any check."""
        kept = held(values, self.dtype)
        return Sparse.trusted(indices, kept, self.shape, self.dtype, self.width, self.transform)

    def _check_width(self) -> None:
        if self.transform is not None and self.width != self.transform.width:
            raise InputError(f"{self.transform} has entries of {self.transform.width} numbers, not {self.width}")
        if self.width < 1 or (self.transform is None and self.numel % self.width):
            raise InputError(f"a tensor of {self.numel} elements has no rows of {self.width}")

    def _checked(self, indices: Array) -> Array:
        size = self.size
        if indices.ndim != 1 or self.values.ndim != 1 or indices.size * self.width != self.values.size:
            raise InputError(f"{indices.shape} indices do not go with {self.values.shape} values; both are flat")
        if indices.size == 0:
            return np.empty(0, index_dtype(size))
        if indices.dtype.kind not in "iu":
            raise InputError(f"indices are integers, not {indices.dtype}")
        if indices[0] < 0 or indices[-1] >= size or not (indices[1:] > indices[:-1]).all():
            raise InputError(f"indices must ascend without repeats within 0 … {size - 1}; np.unique sorts them")
        return indices.astype(index_dtype(size), copy=False)

    @property
    def numel(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Entries that there could be."""
        return self.numel // self.width if self.transform is None else self.transform.size(self.numel)

    @property
    def count(self) -> int:
        """Entries that there are."""
        return int(self.indices.size)

    @property
    def work_values(self) -> Array:
        """The values in the dtype that arithmetic uses."""
        return self.values.astype(work_dtype(self.dtype), copy=False)

    def at(self, where: Array) -> Array:
        """The numbers of the entries at ascending indices, in the work dtype: zero where there is no entry."""
        values = self.work_values.reshape(-1, self.width)
        out = np.zeros((where.size, self.width), values.dtype)
        if self.count:
            place = np.minimum(np.searchsorted(self.indices, where), self.count - 1)
            hit = self.indices[place] == where
            out[hit] = values[place[hit]]
        return out.reshape(-1)

    def to_dense(self) -> Array:
        """The dense array (float32 for bfloat16)."""
        return held(self.flat(), self.dtype).reshape(self.shape)

    def flat(self) -> Array:
        """The dense array, flat and in the work dtype, with the transform undone."""
        if self.transform is not None:
            return self.transform.inverse_sparse(self.indices, self.work_values, self.numel)
        out = np.zeros(self.size * self.width, work_dtype(self.dtype))
        entries(out, self.width)[self.indices] = entries(self.work_values, self.width)
        return out

    def flat_beside(self, like: Dense) -> Dense:
        """`flat` in memory of its own where another array lies, if the transform can be undone there."""
        if kernels.on_host(like) or self.transform is None or not self.transform.on_device:
            return self.flat()
        coefficients = like.zeros_beside(self.size * self.width)
        coefficients.put_entries(self.indices, self.work_values, self.width)
        return self.transform.inverse(coefficients, self.numel)

    def __repr__(self) -> str:
        rows = f" of {self.width} numbers" if self.width > 1 else ""
        return f"Sparse({self.count} of {self.size} entries{rows}, shape={self.shape}, dtype={self.dtype})"


def entries(numbers: Array, width: int) -> Array:
    """A view of flat numbers whose items are entries; pairs as complex numbers, which NumPy moves the fastest."""
    pairs = width == 2 and numbers.dtype.kind == "f" and numbers.itemsize >= 4
    return numbers.view(np.result_type(numbers.dtype, np.complex64)) if pairs else numbers.reshape(-1, width)


def magnitudes(numbers: Dense, width: int) -> Dense:
    """What entries are compared by: their numbers, or the norms of several."""
    if width == 1:
        return numbers
    if not kernels.on_host(numbers):
        return numbers.row_norms(width)
    out = recycled(numbers.size // width, numbers.dtype)
    kernels.row_norms(out, numbers, width)
    return out


def elements(indices: Array, width: int) -> Array:
    """The elements that entries of `width` numbers consist of, ascending.

    >>> elements(np.array([0, 2]), 3).tolist()
    [0, 1, 2, 6, 7, 8]
    """
    if width == 1:
        return indices
    first = indices.astype(np.int64) * width
    return (first[:, None] + np.arange(width)).reshape(-1)


def element_entries(sparse: Sparse) -> tuple[Array, Array]:
    """The elements of a `Sparse` without a transform, and their numbers in the work dtype."""
    return elements(sparse.indices, sparse.width), sparse.work_values


def merged(supports: Sequence[Array]) -> Array:
    """Ascending entries of any of the supports. A stable sort merges runs; np.unique takes a hundred times as long."""
    entries = np.sort(np.concatenate(supports), kind="stable")
    return np.concatenate([entries[:1], entries[1:][entries[1:] != entries[:-1]]])
