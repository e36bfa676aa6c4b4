"""One threshold for a whole model: its tensors compete for the entries of a step.

A rank takes the K largest magnitudes of its compensated gradient over all compressed tensors together; ties go to the
lowest place in the order of names. The K-th magnitude is known only when the last tensor has come, so:

1. A tensor that comes is scanned, in one pass, for candidates: what reaches half of the last step's threshold.
2. Whenever there are more than 2 K candidates, the K largest stay, and their least is an edge for what follows.
3. After the last tensor the K largest candidates are the selection.

If there are fewer than K candidates, or K is not known before, the tensors are scanned after the last of them has come,
without an edge at first. So the edge decides how much is read, never what is selected, and candidates take the room of
3 K entries at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import kernels
from .contract import Context, Select, Terms
from .exchange import Clock, Piece
from .kernels import Array
from .scheme import Scheme

MARGIN = 0.5  # of the last threshold
Entries = tuple[Array, Array]  # ascending indices, and the values there


@dataclass(frozen=True)
class Largest(Select):
    """The `k` largest entries of those whose magnitude reaches `low`; ties go to the lowest index."""

    id = "largest"

    k: int
    low: float

    def pick(self, x: Array, ctx: Context) -> Entries:
        edge = kernels.magnitude_edge(self.low, x.dtype)
        return kernels.topk(x, min(self.k, x.size), edge, threads=kernels.threads)

    def pick_sum(self, terms: Terms, x: Array, ctx: Context) -> Entries:
        edge = kernels.magnitude_edge(self.low, x.dtype)
        return kernels.topk_sum(
            terms.residual, x, min(self.k, x.size), terms.decay, terms.velocity, terms.momentum, terms.nesterov, edge,
            threads=kernels.threads,
        )  # fmt: skip


class Candidates:
    """The entries of some tensors that may be among their `most` largest: all that reach `low`, or the `most` largest."""

    def __init__(self, most: int, low: float = 0.0) -> None:
        self.most, self.low = most, low
        self.size = 0
        self.entries: dict[str, Entries] = {}

    def scan(self, piece: Piece, plan: Scheme) -> None:
        """Takes a tensor's candidates; its buffers are only read."""
        select = replace(plan, select=Largest(self.most, self.low))
        found = piece.select(select, piece.context(plan, 0, 0, 0))
        self.entries[piece.name] = found.indices, found.values
        self.size += found.indices.size
        if self.size > 2 * self.most:
            self.low = max(self.low, self.cut(self.most))

    def cut(self, count: int) -> float:
        """Keeps the `count` largest; the least magnitude of them."""
        names = sorted(self.entries)
        if not names:
            return 0.0
        places, largest = kernels.topk(np.concatenate([self.entries[name][1] for name in names]), count)
        start = 0
        for name in names:
            indices, values = self.entries[name]
            first, last = np.searchsorted(places, (start, start + indices.size))
            mine = places[first:last] - start
            self.entries[name] = indices[mine], values[mine]
            start += indices.size
        self.size = count
        return _least(largest)


def _least(values: Array) -> float:
    """The least magnitude; infinite where all are NaN."""
    if not values.size:
        return 0.0
    return float(np.fmin(np.abs(values[np.argmin(kernels.magnitude_bits(values))]), np.inf))


class ModelSelect:
    """What `select_per="model"` keeps: within a step its candidates, from step to step the threshold and all tensors' size.

    The threshold is in the loss's scale.
    """

    def __init__(self) -> None:
        self.threshold, self.size = 0.0, 0
        self.clear()

    def clear(self) -> None:
        """The step ends."""
        self._found: Candidates | None = None
        self._come = 0

    def scan(self, pieces: Iterable[Piece], plan: Scheme, clock: Clock) -> None:
        """Looks for candidates in tensors that have come, if there is a threshold to go by."""
        if self._found is None and self.threshold > 0:
            self._found = Candidates(_count(plan, self.size), MARGIN * self.threshold)
        for piece in pieces:
            self._come += _size(piece)
            if self._found is not None:
                with clock("select"):
                    self._found.scan(piece, plan)

    def choose(self, pieces: Callable[[], Iterable[Piece]], plan: Scheme, clock: Clock) -> dict[str, Entries]:
        """Each tensor's part of the selection, once all have come; `pieces` gives them again if need be."""
        count, found = _count(plan, self._come), self._found
        if found is None or min(found.most, found.size) < count:
            found = Candidates(count)
            with clock("select again"):
                for piece in pieces():
                    found.scan(piece, plan)
        with clock("select"):
            least = found.cut(count)
        self.size, self.threshold = self._come, least if math.isfinite(least) else self.threshold
        return found.entries

    def multiply(self, factor: float) -> None:
        """Another scale of the loss."""
        self.threshold *= factor

    def saved(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "size": self.size}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Takes over what `saved` gave: it saves work, and changes no result."""
        threshold = float(saved.get("threshold", 0.0))
        self.threshold, self.size = threshold if 0 <= threshold < math.inf else 0.0, int(saved.get("size", 0))


def _count(plan: Scheme, size: int) -> int:
    count = plan.select.largest_of(size)
    assert count is not None  # checked with the settings
    return count


def _size(piece: Piece) -> int:
    return int(piece.x.size)
