"""Selection in Triton, without waiting for the device: exact, ties to the lowest index, indices ascending.

1. Three histograms of the magnitude's bits, of 11, 10 and 10 bits, find the k-th magnitude from its highest bits down.
2. Every block counts its entries above that magnitude and those that equal it.
3. An exclusive scan of the counts tells where each block's entries begin.
4. Every block writes its chosen entries there, in their order.

The gradient and the residual are read five times. Only integers are added atomically, so that no order of programs
changes a result. Which of several NaN come first depends on their bits, which differ between processors after a sum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import torch_select, triton_base
from .contract import Candidates, Entries
from .torch_base import check_count, check_sizes
from .triton_base import compensated, launch, magnitude_bits, supported, tiles

LEVELS = ((20, 11), (10, 10), (0, 10))  # the lowest bit of each histogram's digit, and the bits of the digit
PROGRAMS = 1024  # of a histogram, at most: each adds up several blocks before it adds to memory


def remembered_edge(x: Tensor) -> None:
    """Nothing is remembered: every selection finds its magnitude anew."""


def topk(x: Tensor, k: int, remembered: Tensor | None = None) -> Entries:
    return candidates(None, x, k, 0)[:2]


def topk_sum(
    residual: Tensor, x: Tensor, k: int, decay: float = 1.0, gain: float = 1.0, remembered: Tensor | None = None
) -> Entries:
    return candidates(residual, x, k, 0, decay, gain)[:2]


def candidates(
    residual: Tensor | None, x: Tensor, most: int, edge: int, decay: float = 1.0, gain: float = 1.0
) -> Candidates:
    check_sizes(x, residual)
    check_count(x, most)
    if not supported(x) or not most:
        return torch_select.candidates(residual, x, most, edge, decay, gain)
    source = _Source(residual, x, decay, gain)
    state = source.kth_largest(most, edge)
    counts, ends = source.count(state)
    count = ends[0, -1:] + torch.minimum(ends[1, -1:], state[1:])
    return Candidates(*source.compact(state, counts, ends, most), count.long())


def threshold(x: Tensor, edge: int) -> Entries:
    if not supported(x) or not x.numel():
        return torch_select.threshold(x, edge)
    source = _Source(None, x)
    state = torch.zeros(2, dtype=torch.int32, device=x.device)
    state[:1].fill_(edge - 1)
    counts, ends = source.count(state)
    return source.compact(state, counts, ends, int(ends[0, -1]))


class _Source:
    """The numbers that are selected from. Their state on the device is (k-th magnitude, how many that equal it)."""

    def __init__(self, residual: Tensor | None, x: Tensor, decay: float = 1.0, gain: float = 1.0) -> None:
        self.x, self.tiles = x, tiles(x)
        self.args = (x if residual is None else residual, x, x.numel(), float(decay), float(gain))
        self.constants = {"SUM": residual is not None, "BLOCK": triton_base.BLOCK}

    def kth_largest(self, k: int, edge: int) -> Tensor:
        """The state of the k largest that reach the edge: where the k-th does not, all above edge − 1 are chosen."""
        x = self.x
        state = torch.zeros(2, dtype=torch.int32, device=x.device)
        state[1:].fill_(k)
        for shift, width in LEVELS:
            histogram = torch.zeros(2**width, dtype=torch.int32, device=x.device)
            programs = min(self.tiles, PROGRAMS)
            launch(_histogram, programs, x, *self.args, state, histogram, shift, **self.constants, WIDTH=width)
            launch(_next_digit, 1, x, state, histogram, edge if shift == 0 else 0, WIDTH=width)
        return state

    def count(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """How many entries of each block are above the state's magnitude, how many equal it; and their running sums."""
        counts = torch.empty((2, self.tiles), dtype=torch.int32, device=self.x.device)
        launch(_count, self.tiles, self.x, *self.args, state, counts, **self.constants)
        return counts, counts.cumsum(1, dtype=torch.int32)

    def compact(self, state: Tensor, counts: Tensor, ends: Tensor, most: int) -> Entries:
        indices = torch.empty(most, dtype=torch.int32, device=self.x.device)
        values = torch.empty(most, dtype=torch.float32, device=self.x.device)
        launch(_compact, self.tiles, self.x, *self.args, state, ends - counts, indices, values, **self.constants)
        return indices, values


@triton.jit
def _histogram(
    residual, x, size, decay, gain, state, histogram, shift, SUM: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    """Counts one digit of the magnitudes whose higher bits are those of the k-th."""
    prefix = tl.load(state)
    counts = tl.zeros([2**WIDTH], tl.int32)
    for tile in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
        offsets = tl.cast(tile, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < size
        bits = magnitude_bits(compensated(residual, x, offsets, inside, decay, gain, SUM))
        digits = (bits >> shift) & (2**WIDTH - 1)
        counts += tl.histogram(digits, 2**WIDTH, mask=inside & ((bits >> shift >> WIDTH) == prefix))
    tl.atomic_add(histogram + tl.arange(0, 2**WIDTH), counts, mask=counts > 0)


@triton.jit
def _next_digit(state, histogram, edge, WIDTH: tl.constexpr):
    """Appends the digit that the k-th magnitude has, and takes off k what is above it."""
    digits = tl.arange(0, 2**WIDTH)
    counts = tl.load(histogram + digits)
    wanted = tl.load(state + 1)
    reaching = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
    digit = tl.max(tl.where(reaching >= wanted, digits, 0), 0)
    wanted -= tl.sum(tl.where(digits > digit, counts, 0), 0)
    least = (tl.load(state) << WIDTH) | digit
    tl.store(state, tl.maximum(least, edge - 1))
    tl.store(state + 1, tl.where(least < edge, 0, wanted))


@triton.jit
def _count(residual, x, size, decay, gain, state, counts, SUM: tl.constexpr, BLOCK: tl.constexpr):
    tile = tl.program_id(0)
    offsets = tl.cast(tile, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    bits = magnitude_bits(compensated(residual, x, offsets, inside, decay, gain, SUM))
    least = tl.load(state)
    tl.store(counts + tile, tl.sum((inside & (bits > least)).to(tl.int32), 0))
    tl.store(counts + tl.num_programs(0) + tile, tl.sum((inside & (bits == least)).to(tl.int32), 0))


@triton.jit
def _compact(
    residual, x, size, decay, gain, state, before, indices, values, SUM: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    tile = tl.program_id(0)
    offsets = tl.cast(tile, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < size
    numbers = compensated(residual, x, offsets, inside, decay, gain, SUM)
    bits = magnitude_bits(numbers)
    least, wanted = tl.load(state), tl.load(state + 1)
    ties = tl.load(before + tl.num_programs(0) + tile)
    equal = inside & (bits == least)
    chosen = (inside & (bits > least)) | (equal & (ties + tl.cumsum(equal.to(tl.int32), 0) <= wanted))
    first = tl.load(before + tile) + tl.minimum(ties, wanted)
    position = first + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(indices + position, offsets.to(tl.int32), mask=chosen)
    tl.store(values + position, numbers, mask=chosen)
