"""One threshold for a whole model: its tensors compete for the entries of a step.

A rank takes the K largest magnitudes of its compensated gradient over all compressed tensors together; ties go to the
lowest place in the order of names. The K-th magnitude is known only when the last tensor has come, so:

1. A tensor that comes is scanned, in one pass, for candidates: what reaches an edge somewhat below the last threshold.
2. Whenever there are more than 2 K candidates, the K largest stay, and their least is the edge for what follows.
3. After the last tensor the K largest candidates are the selection. The next edge is where there would have been 3 K.

If there are fewer than K candidates, or no edge is known, all tensors are scanned after the last of them has come. So
the edge decides how much is read, never what is selected; and candidates take the room of 6 K entries at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context, Select, Terms
from sparsewire.codecs.scheme import Scheme
from sparsewire.core.sparse import Sparse
from sparsewire.exchange import Clock, ExchangeContext, Piece, Selected
from sparsewire.kernels import Array, device

from .layout import PendingBuffer

AIM = 3.0  # candidates for each entry that is chosen: fewer may not be enough, more take time
START = 0.7  # of the threshold: the edge, where nothing tells how many would reach it
ROOM = 4  # candidates of one tensor for each entry that is chosen in all
Entries = tuple[Array, Array]  # ascending indices, and the values there


@dataclass(frozen=True)
class Largest(Select):
    """The `k` largest entries of those whose magnitude reaches `low`; ties go to the lowest index."""

    id = "largest"
    on_device = True
    found: ClassVar[list[device.Candidates]]  # of each tensor: on a device there is room for more than there are

    k: int
    low: float

    def check(self) -> None:
        object.__setattr__(self, "found", [])

    def pick(self, x: Array, ctx: Context) -> Entries:
        edge = kernels.magnitude_edge(self.low, x.dtype)
        return self._noted(kernels.of(x).candidates(None, x, min(self.k, x.size), edge))

    def pick_sum(self, terms: Terms, x: Array, ctx: Context) -> Entries:
        edge, count = kernels.magnitude_edge(self.low, x.dtype), min(self.k, x.size)
        return self._noted(kernels.of(x).candidates(terms.residual, x, count, edge, terms.decay, terms.gain))

    def _noted(self, found: device.Candidates) -> Entries:
        self.found.append(found)
        return found.indices, found.values


class Candidates:
    """Of the tensors that were scanned, all entries that reach `low`, or at least the `most` largest of them."""

    def __init__(self, most: int, low: float = 0.0, room: dict[str, int] | None = None) -> None:
        self.most, self.low = most, low
        # By tensor, for what reaches an edge: as many cross with their number.
        self._room = {} if room is None else room
        self.size = self.seen = 0
        self.entries: dict[str, Entries] = {}

    def scan(self, piece: Piece, plan: Scheme) -> None:
        """Takes a tensor's candidates; its buffers are only read."""
        self._scan([piece], plan)

    def scan_all(self, pieces: Sequence[Piece], plan: Scheme) -> None:
        """The same for several tensors. Those of a device are waited for together."""
        together = pieces and not isinstance(pieces[0].x, Sparse) and not kernels.on_host(pieces[0].x)
        for group in [pieces] if together else [[piece] for piece in pieces]:
            self._scan(group, plan)

    def _scan(self, pieces: Sequence[Piece], plan: Scheme) -> None:
        largest = Largest(self.most * ROOM if self.low else self.most, self.low)
        for piece in pieces:
            piece.begin_select(replace(plan, select=largest), piece.context(plan, 0, 0, 0))
        room = [self._room.get(piece.name, 0) if self.low else largest.k for piece in pieces]
        for piece, found in zip(pieces, device.trimmed(largest.found, room), strict=True):
            if largest.low:
                self._room[piece.name] = int(found[0].size * 1.25) + 64
            entries = found if self.low == largest.low else _reaching(found, self.low)
            self.entries[piece.name] = entries
            self.size += entries[0].size
            self.seen += entries[0].size
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


def _reaching(entries: Entries, low: float) -> Entries:
    """Those whose magnitude reaches an edge that has risen since."""
    indices, values = entries
    reached = kernels.magnitude_bits(values) >= kernels.magnitude_edge(low, values.dtype)
    return indices[reached], values[reached]


def _least(values: Array) -> float:
    """The least magnitude; infinite where all are NaN."""
    if not values.size:
        return 0.0
    return float(np.fmin(np.abs(values[np.argmin(kernels.magnitude_bits(values))]), np.inf))


class ModelSelect:
    """What `select_per="model"` needs: in a step its candidates, then an edge for the next and the tensors' size.

    The edge is in the loss's scale.
    """

    def __init__(self) -> None:
        self.edge, self.size = 0.0, 0
        self._room: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Ends a step."""
        self._waiting: list[Sequence[PendingBuffer]] = []
        self._candidates: Candidates | None = None
        self._come, self._next = 0, 0.0

    def scan(
        self, pending: Sequence[PendingBuffer], plan: Scheme, clock: Clock,
        holds: Callable[[PendingBuffer], bool] = lambda buffer: False,
    ) -> None:  # fmt: skip
        """Buffers whose tensors have come: candidates are looked for, if there is an edge.

        `holds` takes the buffers of parameters without a gradient out of the step, which a device tells with the
        candidates: where there are any, those of all that has come are looked for again.
        """
        self._waiting.append(pending)
        self._holds = holds
        if self._candidates is None and self.edge > 0:
            self._candidates = self._empty(plan)
        self._come += sum(int(piece.x.size) for piece in _pieces(pending))
        if self._candidates is None:
            return
        with clock("select"):
            self._candidates.scan_all(_pieces(pending), plan)
            held = [holds(buffer) for buffer in pending]
            if any(held):
                self._candidates = self._empty(plan)
                for earlier in self._waiting:
                    self._candidates.scan_all(list(_read(earlier)), plan)

    def _empty(self, plan: Scheme) -> Candidates:
        return Candidates(_count(plan, self.size), self.edge, self._room)

    def selected(self, context: ExchangeContext) -> Iterator[tuple[Sequence[PendingBuffer], list[Selected]]]:
        """All that has come, call by call, with its part of the selection."""
        if self._waiting:
            entries = self._choose(context.scheme, context.clock)
        for pending in self._waiting:
            offers = [(piece, piece.offered(context.scheme, entries[piece.name])) for piece in _read(pending)]
            yield pending, [context.selected(*offer) for offer in offers]

    def _choose(self, plan: Scheme, clock: Clock) -> dict[str, Entries]:
        count, candidates = _count(plan, self._come), self._candidates
        if candidates is None or min(candidates.most, candidates.size) < count:
            candidates = Candidates(count)
            with clock("select again"):
                for buffer in (buffer for pending in self._waiting for buffer in pending):
                    self._holds(buffer)
                for pending in self._waiting:
                    candidates.scan_all(list(_read(pending)), plan)
        with clock("select"):
            threshold = candidates.cut(count)
        share = candidates.seen / max(count, 1) if candidates is self._candidates else None
        self._next = _edge(threshold, self.edge, share)
        return candidates.entries

    def keep(self, finite: bool) -> None:
        """After a finite step with a selection, the next one goes by it."""
        if finite and self._waiting:
            self.edge, self.size = self._next, self._come

    def multiply(self, factor: float) -> None:
        """Another scale of the loss."""
        self.edge *= factor

    def saved(self) -> dict[str, Any]:
        return {"edge": self.edge, "size": self.size}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Takes over what `saved` gave: it saves work, and changes no result."""
        edge = float(saved.get("edge", 0.0))
        self.edge, self.size = edge if 0 <= edge < math.inf else 0.0, max(0, int(saved.get("size", 0)))


def _pieces(pending: Sequence[PendingBuffer]) -> list[Piece]:
    return [piece for buffer in pending for piece in buffer.pieces]


def _read(pending: Sequence[PendingBuffer]) -> Iterator[Piece]:
    """The tensors of some buffers, again."""
    for buffer in pending:
        yield from buffer.pieces_over(buffer.buffer.read())


def _edge(threshold: float, edge: float, share: float | None) -> float:
    """Where there would have been AIM candidates for each that was chosen, if there were `share` of them at `edge`.

    Taken as a power of the magnitude between that edge and the threshold, where their number is 1.
    """
    if share is None or not 0 < edge <= threshold:
        return START * threshold
    power = math.log(AIM) / math.log(max(share, math.sqrt(AIM)))
    return threshold * min(max((edge / threshold) ** power, 0.05), 0.98)


def _count(plan: Scheme, size: int) -> int:
    count = plan.select.largest_of(size)
    assert count is not None  # checked with the settings
    return count
