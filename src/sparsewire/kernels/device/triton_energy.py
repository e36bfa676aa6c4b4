"""Energies in Triton, in the order of `reference.energy`, and what is kept of a step with a share of its mean.

The reference adds up the squares of every 2048 bytes in 16 lanes by index: sums of 32 rows of 16 numbers, one after the
other. A program does so for several of these blocks at once, a row of each at a time, so that every number is read
once, and kept in the same pass. The lanes are then added up in their order: all but one are zeros in each sum over
them, which is exact whatever order it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..reference.energy import BLOCK_BYTES, LANES
from . import torch_energy, triton_base
from .contract import Entries
from .torch_base import check_sizes
from .torch_energy import DeviceEnergies, DeviceEnergy
from .triton_base import compensated, launch, supported
from .triton_step import add_entries

BLOCKS = 32  # of the sum, in a program; a power of two
ROWS = BLOCK_BYTES // 4 // LANES


def energy(x: Tensor, unit: float = 1.0) -> DeviceEnergy:
    if not supported(x) or unit != 1:
        return torch_energy.energy(x, unit)
    return DeviceEnergy(_block_sums(x, x, keep=False))


def compensate_mean(
    residual: Tensor, x: Tensor, indices: Tensor, sent: Tensor, parts: Sequence[Entries], scale: float
) -> DeviceEnergies:
    if not supported(x):
        return torch_energy.compensate_mean(residual, x, indices, sent, parts, scale)
    check_sizes(x, residual)
    sums = _block_sums(residual, x, keep=True)
    before = torch.empty(indices.numel(), dtype=torch.float32, device=x.device)
    if indices.numel():
        programs = -(-indices.numel() // triton_base.BLOCK)
        args = residual, indices, sent, indices.numel(), before
        launch(_take_off, programs, x, *args, BLOCK=triton_base.BLOCK)
    add_entries(residual, parts, scale)
    return DeviceEnergies(sums, indices, before)


def _block_sums(residual: Tensor, x: Tensor, keep: bool) -> Tensor:
    """The blocks' sums of squares: of x, or of residual + x, which the residual then is."""
    count = -(-x.numel() // (ROWS * LANES))
    sums = torch.empty(count, dtype=torch.float64, device=x.device)
    if count:
        constants = {"KEEP": keep, "BLOCKS": BLOCKS, "ROWS": ROWS, "LANES": LANES}
        launch(_measure, -(-count // BLOCKS), x, residual, x, x.numel(), sums, count, **constants)
    return sums


@triton.jit
def _measure(
    residual, x, size, sums, count,
    KEEP: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cast(tl.program_id(0), tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    lanes = tl.arange(0, LANES)[None, :]
    first = blocks[:, None] * (ROWS * LANES) + lanes
    squares = tl.zeros([BLOCKS, LANES], tl.float64)
    for row in range(ROWS):
        offsets = first + row * LANES
        inside = offsets < size
        number = compensated(residual, x, offsets, inside, 1.0, 1.0, KEEP)
        if KEEP:
            tl.store(residual + offsets, number, mask=inside)
        wide = number.to(tl.float64)
        squares += wide * wide
    total = tl.zeros([BLOCKS], tl.float64)
    for lane in range(LANES):
        total += tl.sum(tl.where(lanes == lane, squares, 0.0), 1)
    tl.store(sums + blocks, total, mask=blocks < count)


@triton.jit
def _take_off(residual, indices, sent, size, before, BLOCK: tl.constexpr):
    """Takes off what was sent, and puts aside what was there."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    places = tl.load(indices + offsets, mask=inside, other=0)
    number = tl.load(residual + places, mask=inside, other=0.0)
    tl.store(before + offsets, number, mask=inside)
    tl.store(residual + places, number - tl.load(sent + offsets, mask=inside, other=0.0), mask=inside)
