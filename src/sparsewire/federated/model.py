"""The weights that server and clients have in common: the same bits on every one of them at the same round."""

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
PLAIN_BELOW = 64  # elements: smaller tensors are not compressed
ITEM_SIZES = {name: store(np.empty(0), name).itemsize for name in DTYPES}
MOST_TENSORS, MOST_NAME = 2**16, 2**12
MOST_DIMENSIONS = 32
WHOLE = "biu"  # NumPy's kinds of tensors that are averaged as float64 and rounded: counters of batches, for example
MOST_WHOLE = 2**52  # so that float64 holds whole numbers and their differences exactly
STORED = (*DTYPES, "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


@dataclass(frozen=True)
class Tensor:
    """What a message must say of a tensor. `stored` is its own number type, `plain` whether it is never compressed."""

    name: str
    shape: tuple[int, ...]
    stored: str
    plain: bool = False

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
        return named and shaped and (self.plain or not self.is_whole)

    def rounded(self, numbers: Array) -> Array:
        """Numbers that the tensor's own type holds, in the work dtype."""
        if not self.is_whole:
            return round_to(numbers, self.dtype)
        info = np.iinfo(self.stored) if self.stored != "bool" else None
        least, most = (0, 1) if info is None else (info.min, info.max)
        return np.clip(np.rint(numbers), max(least, -MOST_WHOLE), min(most, MOST_WHOLE))

    def holds(self, numbers: Array) -> bool:
        """Whether the tensor's own type has all these numbers; no number that is not finite is one."""
        return kernels.all_finite(numbers) and np.array_equal(self.rounded(numbers), numbers)


Weights = dict[str, Array]
Facts = list[list[Any]]  # of tensors, in plain types


class Model:
    """Flat arrays in the work dtype, by name, in the order of `tensors`, in which frames travel.

    `given` are the tensors in the user's order, which a list of arrays without names goes by.
    """

    def __init__(self, tensors: Sequence[Tensor], flat: Mapping[str, Array]) -> None:
        self.given, self.tensors = tuple(tensors), framed(tensors)
        self.flat = {one.name: flat[one.name] for one in self.tensors}

    @classmethod
    def of(cls, weights: Mapping[str, Any], plain: frozenset[str], below: int) -> Model:
        """A model from the user's arrays; those that `plain` names, or with fewer than `below` elements, stay plain."""
        if not weights or not isinstance(weights, Mapping):
            raise InputError("weights are arrays by name, at least one: a dict such as {'layer.weight': array}")
        unknown = plain - set(weights)
        if unknown:
            raise InputError(f"plain names {', '.join(sorted(unknown))}, which the weights do not have")
        read = {name: read_array(name, array) for name, array in weights.items()}
        tensors = [
            Tensor(name, shape, stored, name in plain or stored not in DTYPES or flat.size < below)
            for name, (flat, shape, stored) in read.items()
        ]
        return cls(tensors, {name: flat.copy() for name, (flat, _, _) in read.items()})

    @classmethod
    def from_facts(cls, facts: Facts, flat: Mapping[str, Array]) -> Model:
        """A model that was saved; numbers that it cannot have had are an `InputError`."""
        model = cls(tensors_of(facts), {name: np.array(numbers) for name, numbers in flat.items()})
        for one in model.tensors:
            numbers = model.flat[one.name]
            if numbers.shape != (one.size,) or numbers.dtype != work_dtype(one.dtype) or not one.holds(numbers):
                raise InputError(f"the saved {one.name!r} has numbers that are not finite, or none of {one.stored}")
        return model

    @property
    def facts(self) -> Facts:
        """All but the weights."""
        return [[one.name, list(one.shape), one.stored, one.plain] for one in self.given]

    @cached_property
    def digest(self) -> bytes:
        found = hashlib.blake2b(digest_size=DIGEST_SIZE)
        for one in self.tensors:
            found.update(f"{one.name}\0{one.shape}\0{one.stored}\0{one.plain}\0".encode())
            found.update(store(self.flat[one.name], one.dtype).data)
        return found.digest()

    @property
    def dense_bytes(self) -> int:
        """What all weights take as they are."""
        return sum(one.size * ITEM_SIZES[one.dtype] for one in self.tensors)

    @cached_property
    def norm(self) -> float:
        """The norm of all weights; whole numbers are none."""
        return norm(self.flat[one.name] for one in self.tensors if not one.is_whole)

    def arrays(self) -> Weights:
        """Copies in the user's shapes and number types (float32 for bfloat16)."""
        return {one.name: _stored(self.flat[one.name].copy(), one).reshape(one.shape) for one in self.given}

    def read(self, weights: Mapping[str, Any]) -> Weights:
        """The user's arrays as flat ones, if they are of this model and finite."""
        if set(weights) != {one.name for one in self.tensors}:
            odd = sorted(set(weights) ^ set(self.flat))
            raise InputError(f"the weights' names are not the model's: {', '.join(map(str, odd[:5]))}")
        found = {}
        for one in self.tensors:
            flat, shape, stored = read_array(one.name, weights[one.name])
            if shape != one.shape or (stored not in DTYPES) != one.is_whole:
                raise InputError(f"{one.name!r} is {stored} {shape}, in the model {one.stored} {one.shape}")
            found[one.name] = _converted(one, flat, self.flat[one.name].dtype)
        return found

    def minus(self, changes: Sequence[Sparse]) -> Model:
        """The model that the changes, in the order of its tensors, lead to."""
        moved = {}
        for one, change in zip(self.tensors, changes, strict=True):
            moved[one.name] = self._moved(one, change)
        return Model(self.given, moved)

    def _moved(self, one: Tensor, change: Sparse) -> Array:
        """Only the entries that change are rounded: the others are what the type holds already."""
        out = self.flat[one.name].copy()
        with np.errstate(all="ignore"):
            if change.transform is not None:
                return one.rounded(out - change.flat())
            where = elements(change.indices, change.width)
            out[where] = one.rounded(out[where] - change.work_values)
        return out

    def patched(self, values: Sequence[Sparse]) -> Model:
        """The model with some entries replaced."""
        moved = {}
        for one, part in zip(self.tensors, values, strict=True):
            moved[one.name] = self.flat[one.name].copy()
            moved[one.name][part.indices] = part.work_values
        return Model(self.given, moved)

    def is_finite(self) -> bool:
        return all(kernels.all_finite(flat) for flat in self.flat.values())

    def is_held(self) -> bool:
        """Whether all numbers are finite and such as the tensors' own types have."""
        return all(one.holds(self.flat[one.name]) for one in self.tensors)


def framed(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """In the order of frames: compressed ones first, plain ones last, so that neighbours share a scheme and a type."""
    return tuple(sorted(tensors, key=lambda one: (one.plain, one.dtype)))


def tensors_of(facts: Facts) -> list[Tensor]:
    """Saved tensors; what no server has is an `InputError`."""
    tensors = [Tensor(name, tuple(map(index, shape)), stored, bool(plain)) for name, shape, stored, plain in facts]
    if len({one.name for one in tensors}) != len(tensors) or not all(one.is_valid for one in tensors):
        raise InputError("two saved tensors have one name, or a saved tensor is none that a server has")
    return tensors


def read_array(name: Any, array: Any) -> tuple[Array, tuple[int, ...], str]:
    """(flat in the work dtype, shape, number type) of a user's array; it must be finite."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= MOST_NAME:
        raise InputError(f"a tensor's name is a text of 1 … {MOST_NAME} bytes, not {name!r}")
    found = np.asarray(array) if not hasattr(array, "detach") else array
    if isinstance(found, np.ndarray) and found.dtype.kind in WHOLE:
        return _whole(name, found), found.shape, found.dtype.name
    tensor = host.to_host(found)
    if isinstance(tensor, Sparse):
        raise InputError(f"{name!r} is sparse; weights are dense arrays")
    if not kernels.all_finite(tensor.flat):
        raise InputError(f"{name!r} has numbers that are not finite: the training has diverged; nothing was changed")
    return tensor.flat, tensor.shape, tensor.dtype


def _whole(name: str, found: Array) -> Array:
    """Whole numbers as float64, which has to be exact."""
    if found.size and not -MOST_WHOLE <= int(found.min()) <= int(found.max()) <= MOST_WHOLE:
        raise InputError(
            f"{name!r} has whole numbers beyond ±2**52, which no message carries exactly: leave it out of the weights"
        )
    return found.astype(np.float64).reshape(-1)


def _converted(one: Tensor, flat: Array, dtype: np.dtype[Any]) -> Array:
    """The user's numbers in the model's work dtype, as far as the tensor's own type reaches."""
    with np.errstate(over="ignore"):
        numbers = flat.astype(dtype, copy=False)
    if not kernels.all_finite(numbers) or (one.is_whole and not one.holds(numbers)):
        raise InputError(f"{one.name!r} has numbers that {one.stored}, its type in the model, does not reach")
    return numbers


def norm(arrays: Iterable[Array]) -> float:
    """The Euclidean norm of all numbers; infinite where float64 cannot hold it."""
    with np.errstate(all="ignore"):
        squares = [float(np.dot(one.astype(np.float64), one.astype(np.float64))) for one in arrays]
    return math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.inf


def _stored(flat: Array, one: Tensor) -> Array:
    return flat.astype(one.stored) if one.is_whole else held(flat, one.dtype)
