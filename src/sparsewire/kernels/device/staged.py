"""The contract for a `DeviceArray`: dense arrays stay on the device, entries come from the host as NumPy arrays.

Selected entries are tensors, until `sparsewire.kernels.device.landed` brings those of several selections to the host
at once. Flags, energies and numbers wait for the device when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..reference import Array
from . import crossing, of
from .array import DeviceArray
from .contract import Candidates, DenseKernels, Energies, Energy, Entries

NAME = "staged"


def _kernels(x: DeviceArray) -> DenseKernels:
    return of(x.tensor)


def _tensor(x: DeviceArray | None) -> Tensor | None:
    return None if x is None else x.tensor


def _lifted(x: DeviceArray, parts: Sequence[Entries]) -> list[Entries]:
    device = x.tensor.device
    return [(crossing.up(indices, device), crossing.up(values, device)) for indices, values in parts]


def remembered_edge(x: DeviceArray) -> Any:
    return _kernels(x).remembered_edge(x.tensor)


def topk(x: DeviceArray, k: int, remembered: Any = None) -> Entries:
    return _kernels(x).topk(x.tensor, k, remembered)


def topk_sum(
    residual: DeviceArray, x: DeviceArray, k: int, decay: float = 1.0, gain: float = 1.0, remembered: Any = None
) -> Entries:
    if remembered is None:
        if residual.edge is None:
            residual.edge = remembered_edge(x)
        remembered = residual.edge
    return _kernels(x).topk_sum(residual.tensor, x.tensor, k, decay, gain, remembered)


def candidates(
    residual: DeviceArray | None, x: DeviceArray, most: int, edge: int, decay: float = 1.0, gain: float = 1.0
) -> Candidates:
    return _kernels(x).candidates(_tensor(residual), x.tensor, most, edge, decay, gain)


def threshold(x: DeviceArray, edge: Any) -> Entries:
    count, take = _kernels(x).reaching(x.tensor, edge)
    entries = Unsized(crossing.later(count), take)
    return entries, entries


@dataclass(frozen=True)
class Unsized:
    """Entries on a device whose number is on its way to the host."""

    count: crossing.Later
    take: Callable[[int], tuple[Tensor, Tensor]]

    def sized(self) -> tuple[Tensor, Tensor]:
        """The entries, of which the host knows how many there are."""
        return self.take(int(self.count.read()[0].item()))

    def gathered(self, values: Callable[[Tensor], Tensor]) -> Unsized:
        """The same with other values."""

        def take(count: int) -> tuple[Tensor, Tensor]:
            indices, _ = self.take(count)
            return indices, values(indices)

        return Unsized(self.count, take)


def total(residual: DeviceArray, x: DeviceArray, decay: float = 1.0, gain: float = 1.0) -> DeviceArray:
    return DeviceArray(_kernels(x).total(residual.tensor, x.tensor, decay, gain))


def compensate(
    residual: DeviceArray, x: DeviceArray, indices: Array, sent: Array, decay: float = 1.0, gain: float = 1.0,
    velocity: DeviceArray | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False,
) -> None:  # fmt: skip
    ((places, values),) = _lifted(x, [(indices, sent)])
    _kernels(x).compensate(
        residual.tensor, x.tensor, places, values, decay, gain, _tensor(velocity), momentum, lead, mask
    )


def compensate_mean(
    residual: DeviceArray, x: DeviceArray, indices: Array, sent: Array, parts: Sequence[Entries], scale: float
) -> Energies:
    (own, *others) = _lifted(x, [(indices, sent), *parts])
    measured: Any = _kernels(x).compensate_mean(residual.tensor, x.tensor, *own, others, scale)
    energies: Energies = measured.later(indices)
    return energies


def energy(x: DeviceArray, unit: float = 1.0) -> Energy:
    measured: Any = _kernels(x).energy(x.tensor, unit)
    energy: Energy = measured.later()
    return energy


def largest(x: DeviceArray) -> Number:
    return Number(crossing.later(_kernels(x).largest(x.tensor)))


def accumulate(out: DeviceArray, parts: Sequence[Entries], scale: float) -> None:
    _kernels(out).accumulate(out.tensor, _lifted(out, parts), scale)


def scatter_add(out: DeviceArray, indices: Array, values: Array, scale: float = 1.0) -> None:
    ((places, numbers),) = _lifted(out, [(indices, values)])
    _kernels(out).scatter_add(out.tensor, places, numbers, scale)


def gather(x: DeviceArray, indices: Array) -> Array:
    return crossing.down(_kernels(x).gather(x.tensor, crossing.up(indices, x.tensor.device)))[0]


def gather_sum(residual: DeviceArray, x: DeviceArray, indices: Array, decay: float = 1.0, gain: float = 1.0) -> Array:
    places = crossing.up(indices, x.tensor.device)
    return crossing.down(_kernels(x).gather_sum(residual.tensor, x.tensor, places, decay, gain))[0]


def all_finite(x: DeviceArray) -> Number:
    return Number(crossing.later(_kernels(x).all_finite(x.tensor)))


def has_gradient(x: DeviceArray) -> Number:
    return Number(crossing.later(_kernels(x).has_gradient(x.tensor)))


@dataclass(frozen=True)
class Number:
    """A flag or a number on its way to the host."""

    waiting: crossing.Later

    def __bool__(self) -> bool:
        return bool(self.waiting.read()[0])

    def __float__(self) -> float:
        return float(self.waiting.read()[0])
