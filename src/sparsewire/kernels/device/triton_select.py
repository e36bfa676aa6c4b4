"""Selection in Triton, without waiting for the device: exact, ties to the lowest index, indices ascending.

1. Three histograms of the magnitude's bits, of 11, 10 and 10 bits, find the k-th magnitude from its highest bits down.
2. Every block counts its entries above that magnitude and those that equal it.
3. An exclusive scan of the counts tells where each block's entries begin.
4. Every block writes its chosen entries there, in their order.

Gradient and residual would be read five times. With an edge a bit below the k-th magnitude they are read once: every
block puts aside what reaches the edge, and steps 1 to 4 read that. The edge is remembered from the last step, or a
sample tells it. If fewer than k entries reach it, or more of a block than there is room for, which the device sees by
itself, all is read five times after all.

Only integers are added atomically, so that no order of programs changes a result. Which of several NaN come first
depends on their bits, which differ between processors after a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import torch_base, torch_select, triton_base
from .contract import Candidates, Entries
from .torch_base import check_count, check_sizes
from .triton_base import launch, magnitude_bits, numbers_of, supported, tiles

LEVELS = ((20, 11), (10, 10), (0, 10))  # the lowest bit of each histogram's digit, and the bits of the digit
PROGRAMS = 1024  # of a histogram, at most: each adds up several blocks before it adds to memory
BELOW = 0.93  # of the k-th magnitude: the edge that is remembered
ROOM = 4  # entries that reach the edge, in a block, for each that is chosen on average
LEAST_ROOM = 16
DENSEST = 32  # one in so many elements is a candidate, where room is made for them
SPAN, PART = 4096, 64  # of how many numbers how many are looked at, where no edge is remembered


def remembered_edge(x: Tensor) -> Tensor | None:
    """The edge's bits; 0 where none is known yet."""
    return torch.zeros(1, dtype=torch.int32, device=x.device) if supported(x) else None


def topk(x: Tensor, k: int, remembered: Tensor | None = None) -> Entries:
    return _topk(None, x, k, 1.0, 1.0, remembered)


def topk_sum(
    residual: Tensor, x: Tensor, k: int, decay: float = 1.0, gain: float = 1.0, remembered: Tensor | None = None
) -> Entries:
    return _topk(residual, x, k, decay, gain, remembered)


def _topk(
    residual: Tensor | None, x: Tensor, k: int, decay: float, gain: float, remembered: Tensor | None
) -> Entries:  # fmt: skip
    check_sizes(x, residual)
    check_count(x, k)
    edge = remembered if remembered is not None else _sampled_edge(residual, x, k, decay, gain)
    if edge is None or not supported(x) or not k:
        return candidates(residual, x, k, 0, decay, gain)[:2]
    selection = _Selection(residual, x, decay, gain)
    selection.put_aside(k, edge, least=k)
    state = selection.kth_largest(k, 0)
    if remembered is not None:
        torch.mul(state[:1].view(torch.float32), BELOW, out=remembered.view(torch.float32))
    return selection.compact(state, *selection.count(state), k)


def _sampled_edge(residual: Tensor | None, x: Tensor, k: int, decay: float, gain: float) -> Tensor | None:
    """The bits that somewhat more than k entries are thought to reach; None of an array that is small."""
    spans = x.numel() // SPAN
    if not supported(x) or not spans or not k:
        return None
    numbers = torch_base.compensated(None if residual is None else _sample(residual), _sample(x), decay, gain)
    expected = k * spans * PART / x.numel()
    wanted = min(numbers.numel(), round(expected + 3 * expected**0.5) + 1)
    return torch_base.magnitude_bits(numbers).view(-1).topk(wanted, sorted=False).values.min().view(1)


def _sample(x: Tensor) -> Tensor:
    """The first numbers of each span, side by side."""
    return x[: x.numel() // SPAN * SPAN].view(-1, SPAN)[:, :PART].reshape(-1)


def candidates(
    residual: Tensor | None, x: Tensor, most: int, edge: int, decay: float = 1.0, gain: float = 1.0
) -> Candidates:
    check_sizes(x, residual)
    check_count(x, most)
    if not supported(x) or not most:
        return torch_select.candidates(residual, x, most, edge, decay, gain)
    selection = _Selection(residual, x, decay, gain)
    if edge > 0:
        known = torch.empty(1, dtype=torch.int32, device=x.device).fill_(edge)
        selection.put_aside(min(most, x.numel() // DENSEST), known, least=0)
    state = selection.kth_largest(most, edge)
    counts, ends = selection.count(state)
    count = ends[0, -1:] + torch.minimum(ends[1, -1:], state[1:])
    return Candidates(*selection.compact(state, counts, ends, most), count.long())


def threshold(x: Tensor, edge: int) -> Entries:
    count, take = reaching(x, edge)
    return take(int(count))


def reaching(x: Tensor, edge: int | Tensor) -> tuple[Tensor, Callable[[int], Entries]]:
    if not supported(x) or not x.numel():
        return torch_select.reaching(x, edge)
    selection = _Selection(None, x)
    state = torch.zeros(2, dtype=torch.int32, device=x.device)
    state[:1].fill_(edge - 1)
    counts, ends = selection.count(state)
    return ends[0, -1:], lambda count: selection.compact(state, counts, ends, count)


@dataclass
class _Source:
    """Numbers that are selected from, in tiles. `limits`: how many there are in all, or in each tile (`LIMITED`);
    `places`: their indices, where these are not their places."""

    args: tuple[Any, ...]  # residual, x, limits, decay, gain
    tiles: int
    places: Tensor
    constants: dict[str, Any]  # SUM, LIMITED, BLOCK


class _Selection:
    """A selection from a gradient; its state on the device is (k-th magnitude, how many that equal it)."""

    def __init__(self, residual: Tensor | None, x: Tensor, decay: float = 1.0, gain: float = 1.0) -> None:
        self.x = x
        size = self._integers(1).fill_(x.numel())
        args = (x if residual is None else residual, x, size, float(decay), float(gain))
        constants = {"SUM": residual is not None, "LIMITED": False, "BLOCK": triton_base.BLOCK}
        self.whole = _Source(args, tiles(x), size, constants)
        self.sources = [self.whole]

    def _integers(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=self.x.device)

    def put_aside(self, k: int, edge: Tensor, least: int) -> None:
        """From now on only what reaches the edge is read, if it is enough and all of it has found room, for about k."""
        x, whole = self.x, self.whole
        room = min(triton_base.BLOCK, max(LEAST_ROOM, triton.next_power_of_2(-(-ROOM * k // whole.tiles))))
        values = torch.empty(whole.tiles * room, dtype=torch.float32, device=x.device)
        places = torch.empty(whole.tiles * room, dtype=torch.int32, device=x.device)
        found = self._integers(whole.tiles)
        launch(_put_aside, whole.tiles, x, *whole.args, edge, values, places, found, **whole.constants, ROOM=room)
        enough = (found.sum() >= least) & (found.max() <= room) & (edge > 0)
        whole.args[2].mul_(~enough)
        args = (values, values, found.mul_(enough), 1.0, 1.0)
        aside = _Source(args, whole.tiles, places, {"SUM": False, "LIMITED": True, "BLOCK": room})
        self.sources = [aside, whole]

    def kth_largest(self, k: int, edge: int) -> Tensor:
        """The state of the k largest that reach the edge: where the k-th does not, all above edge − 1 are chosen."""
        state = self._integers(2)
        state[1:].fill_(k)
        for shift, width in LEVELS:
            histogram = self._integers(2**width)
            for one in self.sources:
                programs, levels = min(one.tiles, PROGRAMS), {"WIDTH": width, **one.constants}
                launch(_histogram, programs, self.x, *one.args, state, histogram, one.tiles, shift, **levels)
            launch(_next_digit, 1, self.x, state, histogram, edge if shift == 0 else 0, WIDTH=width)
        return state

    def count(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """How many entries of each tile are above the state's magnitude, how many equal it; and their running sums."""
        counts = self._integers(2, sum(one.tiles for one in self.sources))
        first = 0
        for one in self.sources:
            launch(_count, one.tiles, self.x, *one.args, state, counts[:, first:], counts.shape[1], **one.constants)
            first += one.tiles
        return counts, counts.cumsum(1, dtype=torch.int32)

    def compact(self, state: Tensor, counts: Tensor, ends: Tensor, most: int) -> Entries:
        indices = torch.empty(most, dtype=torch.int32, device=self.x.device)
        values = torch.empty(most, dtype=torch.float32, device=self.x.device)
        before, first = ends - counts, 0
        for one in self.sources:
            rest = (before[:, first:], before.shape[1], one.places, indices, values)
            launch(_compact, one.tiles, self.x, *one.args, state, *rest, **one.constants)
            first += one.tiles
        return indices, values


@triton.jit
def _put_aside(
    residual, x, limits, decay, gain, edge, values, places, found,
    SUM: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """Puts what reaches the edge side by side, as long as there is room, and counts it."""
    tile = tl.program_id(0)
    numbers, offsets, inside = numbers_of(residual, x, limits, tile, decay, gain, SUM, LIMITED, BLOCK)
    reached = inside & (magnitude_bits(numbers) >= tl.load(edge))
    rank = tl.cumsum(reached.to(tl.int32), 0) - 1
    stays = reached & (rank < ROOM)
    position = tl.cast(tile, tl.int64) * ROOM + rank
    tl.store(values + position, numbers, mask=stays)
    tl.store(places + position, offsets.to(tl.int32), mask=stays)
    tl.store(found + tile, tl.sum(reached.to(tl.int32), 0))


@triton.jit
def _histogram(
    residual, x, limits, decay, gain, state, histogram, tiles, shift,
    SUM: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Counts one digit of the magnitudes whose higher bits are those of the k-th."""
    prefix = tl.load(state)
    counts = tl.zeros([2**WIDTH], tl.int32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        numbers, _, inside = numbers_of(residual, x, limits, tile, decay, gain, SUM, LIMITED, BLOCK)
        bits = magnitude_bits(numbers)
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
def _count(
    residual, x, limits, decay, gain, state, counts, stride,
    SUM: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    numbers, _, inside = numbers_of(residual, x, limits, tile, decay, gain, SUM, LIMITED, BLOCK)
    bits, least = magnitude_bits(numbers), tl.load(state)
    tl.store(counts + tile, tl.sum((inside & (bits > least)).to(tl.int32), 0))
    tl.store(counts + stride + tile, tl.sum((inside & (bits == least)).to(tl.int32), 0))


@triton.jit
def _compact(
    residual, x, limits, decay, gain, state, before, stride, places, indices, values,
    SUM: tl.constexpr, LIMITED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    numbers, offsets, inside = numbers_of(residual, x, limits, tile, decay, gain, SUM, LIMITED, BLOCK)
    bits = magnitude_bits(numbers)
    least, wanted = tl.load(state), tl.load(state + 1)
    ties = tl.load(before + stride + tile)
    equal = inside & (bits == least)
    chosen = (inside & (bits > least)) | (equal & (ties + tl.cumsum(equal.to(tl.int32), 0) <= wanted))
    first = tl.load(before + tile) + tl.minimum(ties, wanted)
    position = first + tl.cumsum(chosen.to(tl.int32), 0) - 1
    index = offsets.to(tl.int32)
    if LIMITED:
        index = tl.load(places + offsets, mask=chosen, other=0)
    tl.store(indices + position, index, mask=chosen)
    tl.store(values + position, numbers, mask=chosen)
