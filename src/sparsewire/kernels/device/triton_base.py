"""What the Triton kernels share: the tensors they take, how they are launched, a block's compensated gradient."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # elements that a program handles at once; a power of two
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def supported(x: Tensor) -> bool:
    """Whether arithmetic is in float32 and every count fits an int32: torch's operations do the rest."""
    return x.dtype in DTYPES and x.numel() < 2**31


def tiles(x: Tensor) -> int:
    return -(-x.numel() // BLOCK)


def launch(kernel: Any, programs: int, x: Tensor, *args: Any, **constants: Any) -> None:
    """Runs a kernel where `x` lies. No product is fused with a sum, so that the bits are those of the reference."""
    with torch.cuda.device_of(x):
        kernel[(programs,)](*args, **constants, enable_fp_fusion=False)


@triton.jit
def compensated(residual, x, offsets, inside, decay, gain, SUM: tl.constexpr):
    """decay · residual + gain · x in float32, or x alone."""
    number = tl.load(x + offsets, mask=inside, other=0.0).to(tl.float32)
    if SUM:
        number = decay * tl.load(residual + offsets, mask=inside, other=0.0) + gain * number
    return number


@triton.jit
def magnitude_bits(number):
    """|number| as an integer that orders like the magnitude."""
    return number.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def numbers_of(residual, x, limits, tile, decay, gain, SUM: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr):
    """A tile's numbers, their offsets, and which of them there are."""
    lanes = tl.arange(0, BLOCK)
    offsets = tl.cast(tile, tl.int64) * BLOCK + lanes
    inside = lanes < tl.load(limits + tile) if LIMITED else offsets < tl.load(limits)
    return compensated(residual, x, offsets, inside, decay, gain, SUM), offsets, inside
