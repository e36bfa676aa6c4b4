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
        return self.later().read()

    def later(self) -> MeasuredEnergy:
        """The energy on its way to the host."""
        return MeasuredEnergy(crossing.later(self.sums))


@dataclass(frozen=True)
class MeasuredEnergy:
    """An energy on its way to the host."""

    waiting: crossing.Later

    def read(self) -> float:
        return in_order(self.waiting.read()[0])


@dataclass(frozen=True)
class DeviceEnergies:
    """The sums of a compensated gradient's blocks, and its entries that were sent, with their indices."""

    sums: Tensor
    indices: Tensor
    values: Tensor

    def read(self) -> tuple[float, float]:
        return self.later(crossing.down(self.indices)[0]).read()

    def later(self, indices: Array) -> Measured:
        """The energies on their way to the host, which knows the indices."""
        return Measured(indices, crossing.later(self.sums, self.values))


@dataclass(frozen=True)
class Measured:
    """Two energies on their way to the host."""

    indices: Array
    waiting: crossing.Later

    def read(self) -> tuple[float, float]:
        sums, values = self.waiting.read()
        return in_order(sums), in_order(block_sums_at(self.indices, values, len(sums)))


def energy(x: Tensor, unit: float = 1.0) -> DeviceEnergy:
    return DeviceEnergy(_joined([block_energies(x[at], unit) for at in _blocks(x)], x))


def compensate_mean(
    residual: Tensor, x: Tensor, indices: Tensor, sent: Tensor, parts: Sequence[tuple[Tensor, Tensor]], scale: float
) -> DeviceEnergies:
    check_sizes(x, residual)
    sums = []
    for at in _blocks(x):
        kept = residual[at].add_(x[at])
        sums.append(block_energies(kept))
    measured = DeviceEnergies(_joined(sums, x), indices, residual[indices.long()])
    scatter_add(residual, indices, sent, -1.0)
    for places, values in parts:
        scatter_add(residual, places, values, scale)
    return measured


def block_energies(x: Tensor, unit: float = 1.0) -> Tensor:
    """Of every 2048 bytes of the work dtype, the squares go to 16 lanes by index, which are added up in their order."""
    size = _block_size(x)
    whole = x.numel() // size * size
    last = torch.zeros(size if whole < x.numel() else 0, dtype=x.dtype, device=x.device)
    last[: x.numel() - whole] = x[whole:]
    return torch.cat([_sums(part.view(-1, size // LANES, LANES), unit) for part in (x[:whole], last)])


def _sums(blocks: Tensor, unit: float) -> Tensor:
    lanes = torch.zeros(len(blocks), LANES, dtype=torch.float64, device=blocks.device)
    for row in blocks.unbind(1):
        if unit == 1 and row.dtype != torch.float64:  # squares are exact in float64: fused or not, it is the same
            lanes.addcmul_(row, row)
        else:
            numbers = row.double() if unit == 1 else row.double() / unit
            lanes += numbers * numbers
    total, *rest = lanes.unbind(1)
    for lane in rest:
        total = total + lane
    return total


def _block_size(x: Tensor) -> int:
    return BLOCK_BYTES // work_dtype(x).itemsize


def _blocks(x: Tensor) -> Iterator[slice]:
    """Parts of whole blocks of the reference's sum: both sizes are powers of two."""
    return blocks(x.numel(), _block_size(x))


def _joined(sums: Sequence[Tensor], x: Tensor) -> Tensor:
    return torch.cat(list(sums)) if sums else torch.empty(0, dtype=torch.float64, device=x.device)
