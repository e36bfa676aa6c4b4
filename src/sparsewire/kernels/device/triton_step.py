"""What is kept of a step, means, and whether a gradient is finite, in Triton: one pass each.

Entries are handled in passes of their own over k numbers. Those of one rank have different indices, so that programs
write to different places."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import torch_step, triton_base
from .contract import Entries
from .torch_base import check_sizes
from .triton_base import compensated, launch, magnitude_bits, supported, tiles


def compensate(
    residual: Tensor, x: Tensor, indices: Tensor, sent: Tensor, decay: float = 1.0, gain: float = 1.0,
    velocity: Tensor | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False,
) -> None:  # fmt: skip
    """What the entries that were sent will be is computed before the dense pass, and written after it."""
    if not supported(x) or not x.numel():
        torch_step.compensate(residual, x, indices, sent, decay, gain, velocity, momentum, lead, mask)
        return
    check_sizes(x, residual, velocity)
    entries = indices.numel()
    programs = -(-entries // triton_base.BLOCK)
    constants = {"VELOCITY": velocity is not None, "BLOCK": triton_base.BLOCK}
    kept = torch.empty(entries, dtype=torch.float32, device=x.device)
    moved = kept if velocity is None else torch.empty_like(kept)
    arrays = residual, x, residual if velocity is None else velocity
    if entries:
        factors = float(decay), float(gain), float(momentum)
        launch(_rest, programs, x, *arrays, indices, sent, entries, *factors, kept, moved, **constants)
    _keep_all(residual, x, decay, gain, velocity, momentum, lead)
    if entries:
        rest = indices, entries, float(lead), kept, moved
        launch(_put_rest, programs, x, residual, arrays[2], *rest, MASK=mask, **constants)


def accumulate(out: Tensor, parts: Sequence[Entries], scale: float) -> None:
    if out.dtype != torch.float32 or not supported(out):
        torch_step.accumulate(out, parts, scale)
        return
    out.zero_()
    add_entries(out, parts, scale)


def add_entries(out: Tensor, parts: Sequence[Entries], scale: float) -> None:
    """out += Σ over the parts, in their order, of scale × values at indices."""
    for indices, values in parts:
        if indices.numel():
            programs = -(-indices.numel() // triton_base.BLOCK)
            args = out, indices, values, indices.numel(), float(scale)
            launch(_add_entries, programs, out, *args, BLOCK=triton_base.BLOCK)


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
def _rest(
    residual, x, velocity, indices, sent, size, decay, gain, momentum, kept, moved,
    VELOCITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What entries keep that were sent, and their velocity."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    places = tl.load(indices + offsets, mask=inside, other=0)
    rest = compensated(residual, x, places, inside, decay, gain, True)
    tl.store(kept + offsets, rest - tl.load(sent + offsets, mask=inside, other=0.0), mask=inside)
    if VELOCITY:
        number = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(velocity + places, mask=inside, other=0.0)
        tl.store(moved + offsets, momentum * before + number, mask=inside)


@triton.jit
def _put_rest(
    residual, velocity, indices, size, lead, kept, moved,
    MASK: tl.constexpr, VELOCITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    places = tl.load(indices + offsets, mask=inside, other=0)
    rest = tl.load(kept + offsets, mask=inside, other=0.0)
    if VELOCITY:
        speed = tl.load(moved + offsets, mask=inside, other=0.0)
        if MASK:
            speed = tl.zeros_like(speed)
        tl.store(velocity + places, speed, mask=inside)
        rest += lead * speed
    tl.store(residual + places, rest, mask=inside)


@triton.jit
def _add_entries(out, indices, values, size, scale, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    places = tl.load(indices + offsets, mask=inside, other=0)
    total = tl.load(out + places, mask=inside, other=0.0)
    tl.store(out + places, total + scale * tl.load(values + offsets, mask=inside, other=0.0), mask=inside)


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
