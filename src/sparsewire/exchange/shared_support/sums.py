"""Numbers at entries that all ranks share, summed by an ordinary all_reduce: as they are, or in fewer bits.

    float32    4 bytes a number (8 of a float64 tensor)
    bfloat16   2 bytes; the engine rounds every addition
    int8       1 byte: 127 // ranks levels of the largest magnitude on any rank
    ternary    −1, 0, 1: about log2(2 ranks + 1) bits, see `levels`

With a memory that keeps the rest, integers are the nearest level, and the one level of a ternary code is fitted to the
numbers: the error is then smaller than the numbers, and error feedback makes up for it. Without one they are rounded
at random, with an expectation that is the number itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.comm import Communicator
from sparsewire.core.binary import from_bf16, to_bf16
from sparsewire.core.rng import derive_key
from sparsewire.core.sparse import LARGEST, from_bfloat16, round_to, store
from sparsewire.kernels import Array

from ..dense import average_dense
from .levels import Carrier, fitted_scale, to_levels, unit_for


@dataclass(frozen=True)
class Summand:
    """A tensor's compensated numbers at the shared entries, in the work dtype; whether a memory keeps what is left."""

    numbers: Array
    dtype: str
    keeps: bool
    key: int


@dataclass(frozen=True)
class Summed:
    """What this rank added, and the mean, in the work dtype; whether that is finite."""

    sent: Array
    mean: Array
    finite: bool


def sum_floats(summands: Sequence[Summand], comm: Communicator) -> list[Summed]:
    sent = [round_to(summand.numbers, summand.dtype) for summand in summands]
    means = [numbers.copy() for numbers in sent]
    with np.errstate(all="ignore"):
        average_dense(means, comm)
    return [Summed(own, mean, _finite(mean)) for own, mean in zip(sent, means, strict=True)]


def sum_halves(summands: Sequence[Summand], comm: Communicator) -> list[Summed]:
    bits = [_halves(summand) for summand in summands]
    total = from_bfloat16(comm.sum_bfloat16(np.concatenate(bits))) / np.float32(comm.size)
    parts = zip(summands, bits, _split(total, bits), strict=True)
    return [Summed(from_bfloat16(own).astype(summand.numbers.dtype), mean.astype(summand.numbers.dtype), _finite(mean))
            for summand, own, mean in parts]  # fmt: skip


def _halves(summand: Summand) -> Array:
    """The nearest bfloat16 numbers that the tensor's own type can hold as well."""
    edge = from_bf16(to_bf16(min(LARGEST[summand.dtype], LARGEST["bfloat16"])))
    numbers = summand.numbers
    with np.errstate(all="ignore"):
        numbers = np.where(np.isfinite(numbers), np.clip(numbers, -edge, edge), numbers)
    return store(round_to(numbers, summand.dtype), "bfloat16")


def sum_ternary(summands: Sequence[Summand], comm: Communicator) -> list[Summed]:
    return _sum_levels(summands, comm, 1)


def sum_int8(summands: Sequence[Summand], comm: Communicator) -> list[Summed]:
    return _sum_levels(summands, comm, max(1, 127 // comm.size))


def _sum_levels(summands: Sequence[Summand], comm: Communicator, levels: int) -> list[Summed]:
    scales = comm.all_reduce(np.array([_scale(summand, levels) for summand in summands]), "max")
    units = [unit_for(float(scale), levels, summand.dtype) for scale, summand in zip(scales, summands, strict=True)]
    rounded = [
        to_levels(summand.numbers, unit, levels, None if summand.keeps else derive_key(summand.key, "levels"))
        for summand, unit in zip(summands, units, strict=True)
    ]
    carrier = Carrier(levels, comm.size)
    total = carrier.unpack(comm.all_reduce(carrier.pack(np.concatenate(rounded))), sum(part.size for part in rounded))
    parts = zip(summands, units, rounded, _split(total, rounded), scales, strict=True)
    return [
        _scaled(summand, unit, own, part, comm.size, bool(scale < np.inf)) for summand, unit, own, part, scale in parts
    ]


def _scale(summand: Summand, levels: int) -> float:
    """What one level, or all of them, stand for on this rank; infinite where a number is not finite."""
    if not _finite(summand.numbers):
        return np.inf
    return (
        fitted_scale(summand.numbers)
        if summand.keeps and levels == 1
        else float(np.abs(summand.numbers).max(initial=0))
    )


def _scaled(summand: Summand, unit: float, own: Array, total: Array, ranks: int, finite: bool) -> Summed:
    kind = summand.numbers.dtype.type
    mean = total.astype(kind) * kind(unit) / kind(ranks) if finite else np.full(total.size, np.nan, kind)
    return Summed(own.astype(kind) * kind(unit), mean, finite)


def _split(total: Array, like: Sequence[Array]) -> list[Array]:
    return np.split(total, np.cumsum([part.size for part in like])[:-1])


def _finite(numbers: Array) -> bool:
    return bool(kernels.all_finite(numbers))


SUMS: dict[str, Callable[[Sequence[Summand], Communicator], list[Summed]]] = {
    "float32": sum_floats,
    "bfloat16": sum_halves,
    "int8": sum_int8,
    "ternary": sum_ternary,
}
