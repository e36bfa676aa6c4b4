"""Energies of tensors, in the order of `reference.energy`: sums of blocks on the device, added up on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..reference.base import Array
from ..reference.energy import BLOCK_BYTES, LANES, block_sums_at, in_order
from . import crossing
from .torch_base import blocks, check_sizes, work_dtype
from .torch_step import scatter_add


@dataclass(frozen=True)
class DeviceEnergy:
    """The sums of squares of the blocks, in float64."""

    sums: Tensor

    def read(self) -> float:
        return in_order(crossing.down(self.sums)[0])


@dataclass(frozen=True)
class DeviceEnergies:
    """The sums of a compensated gradient's blocks, and its entries that were sent, with their indices."""

    sums: Tensor
    indices: Tensor
    values: Tensor

    def read(self) -> tuple[float, float]:
        return self.of(*self.later().read())

    def later(self) -> crossing.Later:
        """What the energies are made of, on its way to the host."""
        return crossing.later(self.sums, self.indices, self.values)

    @staticmethod
    def of(sums: Array, indices: Array, values: Array) -> tuple[float, float]:
        return in_order(sums), in_order(block_sums_at(indices, values, len(sums)))


def energy(x: Tensor, unit: float = 1.0) -> DeviceEnergy:
    return DeviceEnergy(_joined([block_energies(x[at], unit) for at in _blocks(x)], x))


def compensate_mean(
    residual: Tensor, x: Tensor, indices: Tensor, sent: Tensor, parts: Sequence[tuple[Tensor, Tensor]], scale: float
) -> DeviceEnergies:
    check_sizes(x, residual)
    sums = []
    for at in _blocks(x):
        total = residual[at] + x[at].to(residual.dtype)
        sums.append(block_energies(total))
        residual[at] = total
    measured = DeviceEnergies(_joined(sums, x), indices, residual[indices.long()])
    scatter_add(residual, indices, sent, -1.0)
    for places, values in parts:
        scatter_add(residual, places, values, scale)
    return measured


def block_energies(x: Tensor, unit: float = 1.0) -> Tensor:
    """Of every 2048 bytes of the work dtype, the squares go to 16 lanes by index, which are added up in their order."""
    size = _block_size(x)
    squares = torch.zeros(-(-x.numel() // size) * size, dtype=torch.float64, device=x.device)
    numbers = x.to(torch.float64)
    numbers = numbers if unit == 1 else numbers / unit
    squares[: x.numel()] = numbers * numbers
    lanes = _in_turn(squares.view(-1, size // LANES, LANES).unbind(1))
    return _in_turn(lanes.unbind(1))


def _block_size(x: Tensor) -> int:
    return BLOCK_BYTES // work_dtype(x).itemsize


def _blocks(x: Tensor) -> Iterator[slice]:
    """Parts of whole blocks of the reference's sum: both sizes are powers of two."""
    return blocks(x.numel(), _block_size(x))


def _in_turn(terms: Sequence[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _joined(sums: Sequence[Tensor], x: Tensor) -> Tensor:
    return torch.cat(list(sums)) if sums else torch.empty(0, dtype=torch.float64, device=x.device)
