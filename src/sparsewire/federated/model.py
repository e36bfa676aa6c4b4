"""The weights that server and clients have in common: at the same round, all of them have the same bits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.core import host
from sparsewire.core.sparse import DTYPES, Sparse, elements, held, is_shape, round_to, store, work_dtype
from sparsewire.errors import InputError
from sparsewire.kernels import Array

DIGEST_SIZE = 8
DENSE_BELOW = 64  # elements: smaller tensors are not compressed
ITEM_SIZES = {name: store(np.empty(0), name).itemsize for name in DTYPES}
MOST_TENSORS, MOST_NAME = 2**16, 2**12
MOST_DIMENSIONS = 32
WHOLE = "biu"  # NumPy's kinds of tensors that are averaged as float64 and rounded: counters of batches, for example
MOST_WHOLE = 2**52  # so that float64 holds whole numbers and their differences exactly
STORED = (*DTYPES, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's name and shape; `stored` is its own number type, `dense` says that it travels uncompressed."""

    name: str
    shape: tuple[int, ...]
    stored: str
    dense: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        """The number type that frames carry it in."""
        return "float64" if self.is_whole else self.stored

    @property
    def is_whole(self) -> bool:
        """Whether the tensor has whole numbers, which are no weights: they are not compressed and not measured."""
        return self.stored not in DTYPES

    @property
    def is_valid(self) -> bool:
        """Whether a server may have such a tensor."""
        named = 0 < len(self.name.encode()) <= MOST_NAME and self.stored in STORED
        shaped = len(self.shape) <= MOST_DIMENSIONS and is_shape(self.shape)
        return named and shaped and (self.dense or not self.is_whole)

    def rounded(self, numbers: Array) -> Array:
        """Numbers that the tensor's own type holds, in the work dtype."""
        if not self.is_whole:
            return round_to(numbers, self.dtype)
        info = np.iinfo(self.stored) if self.stored != "bool" else None
        least, most = (0, 1) if info is None else (info.min, info.max)
        return np.clip(np.rint(numbers), max(least, -MOST_WHOLE), min(most, MOST_WHOLE))

    def holds(self, numbers: Array) -> bool:
        """Whether the tensor's own type can hold all these numbers; none that is not finite counts as held."""
        return kernels.all_finite(numbers) and np.array_equal(self.rounded(numbers), numbers)


Weights = dict[str, Array]
Facts = list[list[Any]]  # of tensors, in plain types


class Model:
    """Flat arrays in the work dtype, by name, in the order of `tensors`, in which frames travel.

    `given` are the tensors in the user's order, which a list of arrays without names goes by.
    """

    def __init__(self, tensors: Sequence[TensorInfo], flat: Mapping[str, Array]) -> None:
        self.given, self.tensors = tuple(tensors), framed(tensors)
        self.flat = {info.name: flat[info.name] for info in self.tensors}

    @classmethod
    def of(cls, weights: Mapping[str, Any], dense: frozenset[str], below: int) -> Model:
        """A model from the user's arrays; dense are those that `dense` names, or with fewer than `below` elements."""
        if not weights or not isinstance(weights, Mapping):
            raise InputError("weights are arrays by name, at least one: a dict such as {'layer.weight': array}")
        unknown = dense - set(weights)
        if unknown:
            raise InputError(f"dense names {', '.join(sorted(unknown))}, which the weights do not have")
        read = {name: read_array(name, array) for name, array in weights.items()}
        tensors = [
            TensorInfo(name, shape, stored, name in dense or stored not in DTYPES or flat.size < below)
            for name, (flat, shape, stored) in read.items()
        ]
        return cls(tensors, {name: flat.copy() for name, (flat, _, _) in read.items()})

    @classmethod
    def from_facts(cls, facts: Facts, flat: Mapping[str, Array]) -> Model:
        """A model that was saved; numbers that it cannot have had are an `InputError`."""
        model = cls(tensors_of(facts), {name: np.array(numbers) for name, numbers in flat.items()})
        for info in model.tensors:
            numbers = model.flat[info.name]
            if numbers.shape != (info.size,) or numbers.dtype != work_dtype(info.dtype) or not info.holds(numbers):
                raise InputError(f"the saved {info.name!r} has numbers that are not finite, or none of {info.stored}")
        return model

    @property
    def facts(self) -> Facts:
        """The tensors' names, shapes and types, without the weights."""
        return [[info.name, list(info.shape), info.stored, info.dense] for info in self.given]

    @cached_property
    def digest(self) -> bytes:
        digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
        for info in self.tensors:
            digest.update(f"{info.name}\0{info.shape}\0{info.stored}\0{info.dense}\0".encode())
            digest.update(store(self.flat[info.name], info.dtype).data)
        return digest.digest()

    @property
    def dense_bytes(self) -> int:
        """Bytes of all weights, uncompressed."""
        return sum(info.size * ITEM_SIZES[info.dtype] for info in self.tensors)

    @cached_property
    def norm(self) -> float:
        """The norm of all weights; whole numbers are none."""
        return norm(self.flat[info.name] for info in self.tensors if not info.is_whole)

    def arrays(self) -> Weights:
        """Copies in the user's shapes and number types (float32 for bfloat16)."""
        return {info.name: _stored(self.flat[info.name].copy(), info).reshape(info.shape) for info in self.given}

    def read(self, weights: Mapping[str, Any]) -> Weights:
        """The user's arrays as flat ones, if they are of this model and finite."""
        if set(weights) != {info.name for info in self.tensors}:
            odd = sorted(set(weights) ^ set(self.flat))
            raise InputError(f"the weights' names are not the model's: {', '.join(map(str, odd[:5]))}")
        arrays = {}
        for info in self.tensors:
            flat, shape, stored = read_array(info.name, weights[info.name])
            if shape != info.shape or (stored not in DTYPES) != info.is_whole:
                raise InputError(f"{info.name!r} is {stored} {shape}, in the model {info.stored} {info.shape}")
            arrays[info.name] = _converted(info, flat, self.flat[info.name].dtype)
        return arrays

    def minus(self, changes: Sequence[Sparse]) -> Model:
        """The model that the changes, in the order of its tensors, lead to."""
        moved = {}
        for info, change in zip(self.tensors, changes, strict=True):
            moved[info.name] = self._moved(info, change)
        return Model(self.given, moved)

    def _moved(self, info: TensorInfo, change: Sparse) -> Array:
        """Only the entries that change are rounded: the others are what the type holds already."""
        out = self.flat[info.name].copy()
        with np.errstate(all="ignore"):
            if change.transform is not None:
                return info.rounded(out - change.flat())
            where = elements(change.indices, change.width)
            out[where] = info.rounded(out[where] - change.work_values)
        return out

    def patched(self, values: Sequence[Sparse]) -> Model:
        """The model with some entries replaced."""
        moved = {}
        for info, part in zip(self.tensors, values, strict=True):
            moved[info.name] = self.flat[info.name].copy()
            moved[info.name][part.indices] = part.work_values
        return Model(self.given, moved)

    def is_finite(self) -> bool:
        return all(kernels.all_finite(flat) for flat in self.flat.values())

    def is_held(self) -> bool:
        """Whether all numbers are finite and fit the tensors' own types."""
        return all(info.holds(self.flat[info.name]) for info in self.tensors)


def framed(tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """The tensors in the order of frames: compressed ones first, so that neighbours share a scheme and a type."""
    return tuple(sorted(tensors, key=lambda info: (info.dense, info.dtype)))


def tensors_of(facts: Facts) -> list[TensorInfo]:
    """Saved tensors; what no server has is an `InputError`."""
    tensors = [TensorInfo(name, tuple(map(index, shape)), stored, bool(dense)) for name, shape, stored, dense in facts]
    if len({info.name for info in tensors}) != len(tensors) or not all(info.is_valid for info in tensors):
        raise InputError("two saved tensors have one name, or a saved tensor is none that a server has")
    return tensors


def read_array(name: Any, array: Any) -> tuple[Array, tuple[int, ...], str]:
    """(flat in the work dtype, shape, number type) of a user's array; it must be finite."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= MOST_NAME:
        raise InputError(f"a tensor's name is a text of 1 … {MOST_NAME} bytes, not {name!r}")
    given = np.asarray(array) if not hasattr(array, "detach") else array
    if isinstance(given, np.ndarray) and given.dtype.kind in WHOLE:
        return _whole(name, given), given.shape, given.dtype.name
    tensor = host.to_host(given)
    if isinstance(tensor, Sparse):
        raise InputError(f"{name!r} is sparse; weights are dense arrays")
    if not kernels.all_finite(tensor.flat):
        raise InputError(f"{name!r} has numbers that are not finite: the training has diverged; nothing was changed")
    return tensor.flat, tensor.shape, tensor.dtype


def _whole(name: str, numbers: Array) -> Array:
    """Whole numbers as float64, which has to be exact."""
    if numbers.size and not -MOST_WHOLE <= int(numbers.min()) <= int(numbers.max()) <= MOST_WHOLE:
        raise InputError(
            f"{name!r} has whole numbers beyond ±2**52, which no message carries exactly: leave it out of the weights"
        )
    return numbers.astype(np.float64).reshape(-1)


def _converted(info: TensorInfo, flat: Array, dtype: np.dtype[Any]) -> Array:
    """The user's numbers in the model's work dtype, as far as the tensor's own type reaches."""
    with np.errstate(over="ignore"):
        numbers = flat.astype(dtype, copy=False)
    if not kernels.all_finite(numbers) or (info.is_whole and not info.holds(numbers)):
        raise InputError(f"{info.name!r} has numbers that {info.stored}, its type in the model, does not reach")
    return numbers


def norm(arrays: Iterable[Array]) -> float:
    """The Euclidean norm of all numbers; infinite where float64 cannot hold it."""
    with np.errstate(all="ignore"):
        squares = [float(np.dot(flat, flat)) for flat in (array.astype(np.float64) for array in arrays)]
    return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf


def _stored(flat: Array, info: TensorInfo) -> Array:
    return flat.astype(info.stored) if info.is_whole else held(flat, info.dtype)
