"""Selection in torch's operations, without waiting for the device.

Positions are sums over flags, and entries that are not chosen are written to a place behind the last one, so that the
host need not know how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .contract import Candidates, Entries
from .torch_base import (
    blocks,
    check_count,
    check_sizes,
    compensated,
    index_dtype,
    magnitude_bits,
    work_dtype,
)


def remembered_edge(x: Tensor) -> None:
    """Torch's operations cannot decide on the device what to read: nothing is to be gained."""


def topk(x: Tensor, k: int, remembered: Tensor | None = None) -> Entries:
    return candidates(None, x, k, 0)[:2]


def topk_sum(
    residual: Tensor, x: Tensor, k: int, decay: float = 1.0, gain: float = 1.0, remembered: Tensor | None = None
) -> Entries:
    return candidates(residual, x, k, 0, decay, gain)[:2]


def candidates(
    residual: Tensor | None, x: Tensor, most: int, edge: int, decay: float = 1.0, gain: float = 1.0
) -> Candidates:
    """1. The k-th magnitude. 2. How many exceed it. 3. These, and the first of those that equal it, in their order."""
    check_sizes(x, residual)
    check_count(x, most)
    found = _Compaction(x, most)
    if most:
        spans = list(blocks(x.numel(), 2 * most))

        def bits_and_numbers(at: slice) -> tuple[Tensor, Tensor]:
            numbers = compensated(None if residual is None else residual[at], x[at], decay, gain)
            return magnitude_bits(numbers), numbers

        _choose(found, spans, bits_and_numbers, most, edge)
    return Candidates(found.indices[:most], found.values[:most], found.count)


class _Compaction:
    """Chosen entries, put side by side in their order."""

    def __init__(self, x: Tensor, most: int) -> None:
        self.indices = torch.empty(most + 1, dtype=index_dtype(x), device=x.device)
        self.values = torch.empty(most + 1, dtype=work_dtype(x), device=x.device)
        self.count = torch.zeros(1, dtype=torch.int64, device=x.device)
        self.most = most

    def add(self, chosen: Tensor, numbers: Tensor, start: int) -> None:
        ranks = chosen.cumsum(0)
        position = torch.where(chosen, ranks + (self.count - 1), self.most)
        places = torch.arange(start, start + numbers.numel(), dtype=self.indices.dtype, device=numbers.device)
        self.indices[position] = places
        self.values[position] = numbers
        self.count = self.count + ranks[-1:]


def _choose(
    found: _Compaction, spans: Sequence[slice], read: Callable[[slice], tuple[Tensor, Tensor]], k: int, edge: int
) -> None:
    least = _kth_largest((read(at)[0] for at in spans), k)
    above = torch.stack([(read(at)[0] > least).sum() for at in spans]).sum()
    ties = torch.zeros_like(found.count)
    for at in spans:
        bits, numbers = read(at)
        equal = bits == least
        ranks = equal.cumsum(0) + ties
        ties = ranks[-1:]
        found.add(((bits > least) | (equal & (ranks <= k - above))) & (bits >= edge), numbers, at.start)


def _kth_largest(parts: Iterable[Tensor], k: int) -> Tensor:
    """The k-th largest number of all parts: torch.topk takes any of equal entries, but their numbers are the same."""
    largest: Tensor | None = None
    for part in parts:
        pool = part if largest is None else torch.cat([largest, part])
        largest = torch.topk(pool, min(k, pool.numel()), sorted=False).values
    assert largest is not None
    return largest.min()


def threshold(x: Tensor, edge: int) -> Entries:
    count, take = reaching(x, edge)
    return take(int(count))


def reaching(x: Tensor, edge: int | Tensor) -> tuple[Tensor, Callable[[int], Entries]]:
    """A flag for every element is written block by block; places and values then as many as there are."""
    reached = torch.empty(x.numel(), dtype=torch.bool, device=x.device)
    for at in blocks(x.numel()):
        reached[at] = magnitude_bits(x[at].to(work_dtype(x))) >= edge

    def take(count: int) -> Entries:
        places = _places(reached, count)
        return places.to(index_dtype(x)), x[places].to(work_dtype(x))

    return reached.sum().view(1), take


def _places(flags: Tensor, count: int) -> Tensor:
    """Where the flags are set, of which there are `count`: nobody waits for their number."""
    try:
        return torch.nonzero_static(flags, size=count).view(-1)
    except NotImplementedError:  # on devices that do not have it
        places = torch.empty(count + 1, dtype=torch.int64, device=flags.device)
        position = torch.where(flags, flags.cumsum(0) - 1, count)
        places[position] = torch.arange(flags.numel(), device=flags.device)
        return places[:count]
