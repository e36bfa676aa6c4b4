"""The contract on NumPy arrays: the native kernels, or the reference where they are not built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels

from ..edges import edge_beside
from ..reference import Array
from ..reference.energy import block_energies, in_order
from .contract import Candidates, Entries

NAME = "host"


@dataclass(frozen=True)
class Known:
    """An energy that is known already."""

    value: float

    def read(self) -> float:
        return self.value


@dataclass(frozen=True)
class KnownPair:
    """Two energies that are known already."""

    values: tuple[float, float]

    def read(self) -> tuple[float, float]:
        return self.values


def remembered_edge(x: Array) -> Array:
    return np.zeros(1, np.int64)


def topk(x: Array, k: int, remembered: object = None) -> Entries:
    return kernels.topk(x, k, threads=kernels.threads)


def topk_sum(
    residual: Array, x: Array, k: int, decay: float = 1.0, gain: float = 1.0, remembered: Array | None = None
) -> Entries:
    if remembered is None:
        remembered = edge_beside(residual, k)
    return kernels.topk_sum(residual, x, k, decay, gain, threads=kernels.threads, remembered=remembered)


def candidates(
    residual: Array | None, x: Array, most: int, edge: int, decay: float = 1.0, gain: float = 1.0
) -> Candidates:
    if residual is None:
        indices, values = kernels.topk(x, most, edge, threads=kernels.threads)
    else:
        indices, values = kernels.topk_sum(residual, x, most, decay, gain, edge, threads=kernels.threads)
    return Candidates(indices, values, np.array([indices.size]))


def threshold(x: Array, edge: int) -> Entries:
    return kernels.threshold(x, edge, threads=kernels.threads)


def reaching(x: Array, edge: int) -> tuple[Array, Callable[[int], Entries]]:
    found = threshold(x, edge)
    return np.array([found[0].size]), lambda count: found


def total(residual: Array, x: Array, decay: float = 1.0, gain: float = 1.0) -> Array:
    kind = x.dtype.type
    with np.errstate(all="ignore"):
        return np.asarray(kind(decay) * residual + kind(gain) * x)


def compensate(
    residual: Array, x: Array, indices: Array, sent: Array, decay: float = 1.0, gain: float = 1.0,
    velocity: Array | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False,
) -> None:  # fmt: skip
    kernels.compensate(residual, x, indices, sent, decay, gain, velocity, momentum, lead, mask, threads=kernels.threads)


def compensate_mean(
    residual: Array, x: Array, indices: Array, sent: Array, parts: Sequence[Entries], scale: float
) -> KnownPair:
    return KnownPair(kernels.compensate_mean(residual, x, indices, sent, parts, scale, threads=kernels.threads))


def energy(x: Array, unit: float = 1.0) -> Known:
    if unit == 1.0:
        return Known(kernels.energy(x, threads=kernels.threads))
    return Known(in_order(block_energies(x, unit)))


def largest(x: Array) -> Array:
    if not x.size or not kernels.all_finite(x, threads=kernels.threads):
        return np.array(np.inf if x.size else 0.0, x.dtype)
    return np.array(abs(max(x.max(), -x.min())), x.dtype)


def accumulate(out: Array, parts: Sequence[Entries], scale: float) -> None:
    kernels.accumulate(out, parts, scale, threads=kernels.threads)


def scatter_add(out: Array, indices: Array, values: Array, scale: float = 1.0) -> None:
    kernels.scatter_add(out, indices, values, scale)


def gather(x: Array, indices: Array) -> Array:
    return np.asarray(x[indices])


def gather_sum(residual: Array, x: Array, indices: Array, decay: float = 1.0, gain: float = 1.0) -> Array:
    return total(residual[indices], x[indices], decay, gain)


def all_finite(x: Array) -> np.bool_:
    return np.bool_(kernels.all_finite(x, threads=kernels.threads))


def has_gradient(x: Array) -> np.bool_:
    return np.bool_(x[:64].any() or x.any())
