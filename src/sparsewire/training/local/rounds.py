"""`Rounds`: training that speaks rarely, for any framework. Ranks train alone, then the change of their weights meets.

Every rank holds the common weights θ and trains its own θ_r from them. A meeting:
1. Every rank tells at which meeting it is, why, and whether its weights are finite. One that is not spoils the round:
   all ranks go back to θ, and nothing else changes.
2. Δ_r = θ − θ_r is exchanged like a gradient, by an `Averager`.
3. One more word from everyone: now each rank has all that it needs to go on alone. Whoever fails before this point
   leaves the meeting undone on every rank; whoever fails later finds, with the others, that it was held (`membership`).
4. The memories keep what was not sent, and the outer rule moves θ by the mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from sparsewire import kernels
from sparsewire.comm import Communicator
from sparsewire.core.binary import Reader, varint
from sparsewire.core.sparse import Sparse, round_to
from sparsewire.errors import CommMismatch, FrameError, PeerError
from sparsewire.kernels import Array

from ..averager import Averager
from ..layout import Buffer, Slice
from ..schedule import Settings
from .outer import OuterRule
from .round_schedule import RoundSchedule, split, steps_until

Weights = Mapping[str, Array]
DUE, CALLED, LAST = range(3)
REASONS = ("is due", "was called by meet()", "is the last one, of detach()")


@dataclass(frozen=True)
class Plan:
    """The plan of all rounds: their schedule, the outer rule, tensors that take their plain mean, and fragments."""

    schedule: RoundSchedule
    outer: OuterRule
    plain: frozenset[str] = frozenset()
    fragments: int = 1
    keep_sent: bool = False


@dataclass(frozen=True)
class Visit:
    """This rank's part in a meeting: its own weights, and how many steps it made for it."""

    kind: int
    names: tuple[str, ...]
    local: Weights
    steps: int
    total: int
    changed: bool
    finite: bool

    def copied(self) -> Visit:
        """The same with weights that nobody trains on."""
        return replace(self, local={name: self.local[name].copy() for name in self.names})


@dataclass(frozen=True)
class Prepared:
    """A meeting of which every collective is done: it can be held without the others."""

    visit: Visit
    changes: dict[str, Array]
    total: int
    finite: bool


@dataclass
class Counts:
    """Steps since the last meeting, steps that the ranks agreed on then, meetings with weights that were not finite."""

    steps: int = 0
    agreed: int = 0
    nonfinite: int = 0
    changed: bool = False  # whether this rank's weights may differ from the common ones


class Rounds:
    """One rank's part. Weights are flat arrays in the work dtype, by name; `dtypes` are those of the model."""

    def __init__(
        self, comm: Communicator, settings: Settings, plan: Plan, weights: Weights, dtypes: Mapping[str, str]
    ) -> None:
        self.plan, self.dtypes = plan, dict(dtypes)
        self.common = {name: array.copy() for name, array in weights.items()}
        self.outer: dict[str, dict[str, Array]] = {}
        self.sent: dict[str, Sparse] = {}  # of the last meeting, if the plan keeps it
        self.meeting, self.counts = 0, Counts()
        self.prepared: Prepared | None = None
        on_sent = self.sent.__setitem__ if plan.keep_sent else None
        # Means are handed out as they are: the outer rule stands behind them, not an optimizer with a momentum.
        sizes = {name: array.size for name, array in self.common.items()}
        self.averager = Averager(comm, replace(settings, on_sent=on_sent, momenta=dict), sizes)
        moved = {name: array.size for name, array in self.common.items() if name not in plan.plain}
        self._parts = split(moved, plan.fragments)

    @property
    def comm(self) -> Communicator:
        return self.averager.comm

    @property
    def round(self) -> int:
        """Every tensor meets once in a round."""
        return self.meeting // self.plan.fragments

    @property
    def total(self) -> int:
        """Local steps since the beginning."""
        return self.counts.agreed + self.counts.steps

    def given(self, name: str) -> Array:
        """The common weights as the model holds them."""
        return round_to(self.common[name], self.dtypes[name])

    # --- local steps ---

    def count(self) -> None:
        """One more local step."""
        self.counts.steps += 1
        self.counts.changed = True

    @property
    def due(self) -> bool:
        """Whether the steps are enough for a meeting. Not to be asked while one is held: it may begin a new round."""
        fragment = self.meeting % self.plan.fragments
        return self.counts.steps >= steps_until(self.plan.schedule(self.round), fragment, self.plan.fragments)

    def names(self, kind: int = DUE) -> tuple[str, ...]:
        """What the next meeting exchanges: a fragment in its turn, or all if it is called."""
        if kind != DUE:
            return tuple(self.common)
        part = {*self._parts[self.meeting % self.plan.fragments], *self.plan.plain}
        return tuple(name for name in self.common if name in part)

    # --- a meeting ---

    def visit(self, local: Weights, kind: int = DUE) -> Visit:
        """Takes the steps made so far to a meeting; `hold` it, or `cancel`. All of this rank's weights are given."""
        counts, finite = self.counts, all(kernels.all_finite(x, threads=kernels.threads) for x in local.values())
        visit = Visit(kind, self.names(kind), local, counts.steps, self.total, counts.changed, finite)
        counts.agreed, counts.steps = self.total, 0
        return visit

    def cancel(self, visit: Visit) -> None:
        """The meeting was not held: its steps wait for the next one."""
        self.counts.agreed -= visit.steps
        self.counts.steps += visit.steps

    def hold(self, visit: Visit) -> bool | None:
        """The meeting; whether it was finite on every rank. None: the last one had nothing to do."""
        arrivals = self._arrivals(visit)
        if visit.kind == LAST and not any(arrival.changed for arrival in arrivals):
            return None
        self.averager.step = self.meeting
        total = max(arrival.total for arrival in arrivals)
        try:
            changes, finite = {}, self._agreed(all(arrival.finite for arrival in arrivals))
            if finite:
                changes = self._put(visit)
                finite = self.averager.prepare()
        except BaseException:
            self.averager.abandon()
            raise
        self.prepared = Prepared(visit, changes, total, finite)
        self.comm.all_gather(b"", "held")
        return self.commit()

    def _agreed(self, finite: bool) -> bool:
        """Also for others that the host must ask: the shards of a replica."""
        ask = self.averager.settings.agree
        return finite if ask is None else ask(finite)

    def _put(self, visit: Visit) -> dict[str, Array]:
        """Hands the changes over, side by side: in dense rounds each buffer is a collective."""
        changes: dict[str, Array] = {}
        for kind in sorted({self.common[name].dtype.name for name in visit.names}):
            names = [name for name in visit.names if self.common[name].dtype == kind]
            ends = list(itertools.accumulate(self.common[name].size for name in names))
            slices = tuple(Slice(*place) for place in zip(names, [0, *ends], ends, strict=False))
            flat = np.concatenate([self.given(name) - visit.local[name] for name in names])
            changes |= {item.name: flat[item.start : item.stop] for item in slices}
            self.averager.put_buffers([Buffer(slices, kind, flat.view)])
        return changes

    def commit(self) -> bool:
        """Holds the meeting that is prepared."""
        done, self.prepared = self.prepared, None
        assert done is not None
        self.sent.clear()
        finite = done.finite
        if done.changes:
            self.averager.commit(finite)
            finite = finite and self._move(done.changes)
        self.meeting += 1
        self.averager.step = self.meeting
        self.counts.agreed = done.total
        self.counts.nonfinite += not finite
        return finite

    def settle(self, visit: Visit, finite: bool) -> None:
        """The meeting's outcome is in the model. Called where steps are counted, which `commit` need not be."""
        if not self.counts.steps and (not finite or len(visit.names) == len(self.common)):
            self.counts.changed = False

    def abandon(self) -> None:
        """Leaves a prepared meeting undone."""
        self.prepared = None
        self.averager.abandon()

    def _move(self, means: Weights) -> bool:
        """The outer rule, for all tensors or, where it would lead beyond all numbers, for none."""
        moved = {name: self._moved(name, mean) for name, mean in means.items()}
        if not all(kernels.all_finite(weights, threads=kernels.threads) for weights, _ in moved.values()):
            return False
        for name, (weights, kept) in moved.items():
            self.common[name] = weights
            if kept:
                self.outer[name] = dict(kept)
        return True

    def _moved(self, name: str, mean: Array) -> tuple[Array, Weights]:
        weights = self.common[name]
        if name in self.plan.plain:
            return weights - mean, {}
        empty = {buffer: np.zeros_like(weights) for buffer in self.plan.outer.buffers if name not in self.outer}
        with np.errstate(all="ignore"):
            return self.plan.outer.move(weights, mean, self.outer.get(name, empty))

    # --- who is where ---

    def _arrivals(self, visit: Visit) -> list[Arrival]:
        mine = Arrival(self.meeting, visit.kind, visit.changed, visit.finite, visit.total)
        messages = self.comm.all_gather(mine.pack(), "meeting")
        arrivals = [_read(message, rank) for rank, message in enumerate(messages)]
        first = arrivals[0]
        for rank, arrival in enumerate(arrivals):
            if (arrival.meeting, arrival.kind) != (first.meeting, first.kind):
                raise CommMismatch(
                    f"rank {rank} is at meeting {arrival.meeting}, which {REASONS[arrival.kind]}; rank 0 is at meeting "
                    f"{first.meeting}, which {REASONS[first.kind]}: every rank calls step(), meet() and detach() "
                    "in the same order"
                )
        return arrivals


@dataclass(frozen=True)
class Arrival:
    """What a rank says as it arrives at a meeting."""

    meeting: int
    kind: int
    changed: bool
    finite: bool
    total: int = field(default=0)

    def pack(self) -> bytes:
        return bytes([self.kind | self.changed << 2 | self.finite << 3]) + varint(self.meeting) + varint(self.total)


def _read(message: memoryview, rank: int) -> Arrival:
    try:
        reader = Reader(message)
        flags = reader.byte()
        arrival = Arrival(reader.varint(), flags & 3, bool(flags & 4), bool(flags & 8), reader.varint())
        if flags >> 4 or arrival.kind >= len(REASONS) or reader.left:
            raise FrameError("what it said as it came to the meeting cannot be read")
        return arrival
    except FrameError as error:
        raise PeerError(f"rank {rank}: {error}") from error
