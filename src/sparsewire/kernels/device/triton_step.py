"""What is kept of a step, and whether a gradient is finite, in Triton: one pass each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import torch_step, triton_base
from .triton_base import compensated, launch, magnitude_bits, supported, tiles


def compensate(
    residual: Tensor, x: Tensor, indices: Tensor, sent: Tensor, decay: float = 1.0, gain: float = 1.0,
    velocity: Tensor | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False,
) -> None:  # fmt: skip
    """As `torch_step.compensate`, with the dense pass in one kernel."""
    dense_pass = _keep_all if supported(x) else torch_step.keep_all
    torch_step.compensate(residual, x, indices, sent, decay, gain, velocity, momentum, lead, mask, dense_pass)


def _keep_all(
    residual: Tensor, x: Tensor, decay: float, gain: float, velocity: Tensor | None, momentum: float, lead: float
) -> None:
    if x.numel():
        arrays = residual, x, residual if velocity is None else velocity
        factors = float(decay), float(gain), float(momentum), float(lead)
        constants = {"VELOCITY": velocity is not None, "BLOCK": triton_base.BLOCK}
        launch(_keep, tiles(x), x, *arrays, x.numel(), *factors, **constants)


def all_finite(x: Tensor) -> Tensor:
    if not supported(x):
        return torch_step.all_finite(x)
    flag = torch.zeros((), dtype=torch.int32, device=x.device)
    if x.numel():
        launch(_find_non_finite, tiles(x), x, x, x.numel(), flag, BLOCK=triton_base.BLOCK)
    return flag == 0


@triton.jit
def _keep(
    residual, x, velocity, size, decay, gain, momentum, lead, VELOCITY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    offsets = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    rest = compensated(residual, x, offsets, inside, decay, gain, True)
    if VELOCITY:
        number = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
        moved = momentum * tl.load(velocity + offsets, mask=inside, other=0.0) + number
        tl.store(velocity + offsets, moved, mask=inside)
        rest += lead * moved
    tl.store(residual + offsets, rest, mask=inside)


@triton.jit
def _find_non_finite(x, size, flag, BLOCK: tl.constexpr):
    offsets = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + offsets, mask=offsets < size, other=0.0).to(tl.float32)
    found = tl.max((magnitude_bits(numbers) >= 0x7F800000).to(tl.int32), 0)
    tl.atomic_max(flag, found, mask=found > 0)
