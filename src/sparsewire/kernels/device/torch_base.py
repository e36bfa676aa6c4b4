"""What the kernels on tensors share: dtypes, blocks, magnitudes, the compensated gradient of a block."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 2**22  # elements of temporary tensors; a power of two
BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def work_dtype(x: Tensor) -> torch.dtype:
    """The dtype that arithmetic on a tensor is done in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def index_dtype(x: Tensor) -> torch.dtype:
    """As `reference.index_dtype`."""
    return torch.int32 if x.numel() <= 2**31 else torch.int64


def blocks(size: int, least: int = 1) -> Iterator[slice]:
    """The parts that work is done in, one after the other, of at least so many elements."""
    block = max(BLOCK, least)
    return (slice(start, min(start + block, size)) for start in range(0, size, block))


def magnitude_bits(x: Tensor) -> Tensor:
    """|x| as an integer that orders like the magnitude; x is in a work dtype."""
    kind = BITS[x.dtype]
    return x.view(kind) & torch.iinfo(kind).max


def compensated(residual: Tensor | None, x: Tensor, decay: float, gain: float) -> Tensor:
    """decay · residual + gain · x, or x alone, in the work dtype. Every product and sum is rounded by itself."""
    number = x.to(work_dtype(x))
    if residual is None:
        return number
    number = number if gain == 1 else number * gain
    return (residual if decay == 1 else residual * decay) + number


def check_sizes(x: Tensor, *others: Tensor | None) -> None:
    """What the host can refuse without waiting."""
    if any(other is not None and other.numel() != x.numel() for other in others):
        raise ValueError("the residual, the velocity and x differ in size")


def check_count(x: Tensor, k: int) -> None:
    if not 0 <= k <= x.numel():
        raise ValueError(f"k must lie in 0…{x.numel()}, not {k}")
