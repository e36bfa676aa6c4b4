"""The second phase of a step: its means go out, and the memories keep what was not sent.

An engine that knows at once that a step counts has both done buffer by buffer (`commit`). One that decides later has
the means written first (`write`), and `keep` called when it has decided: what the memories read of the gradients, whose
places the means have taken, is held until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.memory import Residual
from sparsewire.codecs.scheme import Scheme
from sparsewire.core.sparse import Sparse
from sparsewire.exchange import Clock, Outcome
from sparsewire.kernels import Array
from sparsewire.kernels.scratch import scratch

from .layout import PendingBuffer, PendingSparse, Segment
from .nodes.nodes import Flat
from .places import is_narrow, unfilled
from .residuals.gain import StepGain
from .residuals.momentum import MeanEntries, left_behind, to_optimizer
from .residuals.states import States
from .residuals.step_mean import StepMean
from .residuals.unsent import flush
from .schedule import Settings


@dataclass
class StepEnd:
    """The end of one step: `plan` is its scheme, None if it is dense, and `finite` what all ranks agreed on."""

    plan: Scheme | None
    finite: bool
    settings: Settings
    states: States
    gain: StepGain
    nodes: Flat
    clock: Clock
    was_sparse: bool  # the step before
    _means: dict[str, StepMean | None] = field(default_factory=dict)  # for the next step, by parameter
    _held: list[tuple[PendingBuffer, Array]] = field(default_factory=list)
    _held_sparse: list[PendingSparse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scheme = self.plan or self.settings.schedule.scheme
        self._left = left_behind(self.settings, self._scheme.memory, dense=self.plan is None)

    # --- both halves at once ---

    def commit(self, pending: PendingBuffer) -> None:
        """The memories read the gradient where it is, then the mean takes its place."""
        numbers = pending.buffer.read()
        self._keep(pending, numbers)
        self._write(pending, numbers)

    def commit_sparse(self, pending: PendingSparse) -> Sparse:
        self._keep_sparse(pending)
        return self._mean(pending)

    # --- one half, and the other ---

    def write(self, pending: PendingBuffer) -> None:
        """The mean takes the gradient's place; the gradient is held if a memory will read it."""
        numbers = pending.buffer.read()
        if self.finite:
            read = self._scheme.memory.buffers and not pending.in_place
            self._held.append((pending, numbers.copy() if read else numbers))
        self._write(pending, numbers)

    def write_sparse(self, pending: PendingSparse) -> Sparse:
        """The same; the mean is returned."""
        if self.finite:
            self._held_sparse.append(pending.copied())
        return self._mean(pending)

    def keep(self) -> None:
        """The step counts: memories keep what was not sent, and what the next step needs of the means is remembered."""
        for pending, gradient in self._held:
            self._keep(pending, gradient)
        for sparse in self._held_sparse:
            self._keep_sparse(sparse)
        for name, mean in self._means.items():
            if mean is None:
                self.states.means.pop(name, None)
            else:
                self.states.means[name] = mean
        if self.finite:
            self.gain.follow(dense=self.plan is None)

    # --- what is kept ---

    def _keep(self, pending: PendingBuffer, gradient: Array) -> None:
        if not self.finite:
            return
        for item, mean in pending.dense:
            used, left = item.name not in pending.unused, self._left(item.name)
            flush(item, gradient, mean, self._scheme, self.settings, self.states, used, left)
        if pending.buffer.copies:  # elsewhere it was done as the buffer came
            pending.layout.clear(gradient)
        for piece, outcome in zip(pending.pieces_over(gradient), pending.outcomes, strict=True):
            with self.clock("keep"):
                self.gain.note(piece.keep(self._scheme, outcome, self.gain.now))
            if self.settings.on_sent is not None:
                self.settings.on_sent(piece.name, outcome.delivered())

    def _keep_sparse(self, pending: PendingSparse) -> None:
        if self.finite and self.plan is not None:
            with self.clock("keep"):
                pending.piece.keep(for_sparse(self.plan), pending.outcome)

    # --- what goes out ---

    def _write(self, pending: PendingBuffer, stored: Array) -> None:
        held = self.finite and self._scheme.memory.held_momentum
        numbers = unfilled(stored) if held and is_narrow(stored) else stored
        for segment, outcome in zip(pending.layout.segments, pending.outcomes, strict=True):
            with self.clock("accumulate"):
                _mean_into(numbers[segment.start : segment.stop], outcome)
        for item, mean in () if pending.in_place else pending.dense:
            numbers[item.start : item.stop] = mean
        if self.finite and self._scheme.memory.held_momentum:
            with self.clock("hand out"):
                memory, gain = self._scheme.memory, self.gain.now
                self._means |= to_optimizer(
                    pending.buffer, numbers, _known(pending, numbers), self.states, self.settings, memory, gain,
                    self._left,
                )  # fmt: skip
        if numbers is not stored:
            stored[:] = numbers
        pending.buffer.write(stored)

    def _mean(self, pending: PendingSparse) -> Sparse:
        mean = pending.outcome.mean_sparse()
        return self.nodes.give_sparse(pending.piece.name, mean, pending.given, self.clock)


def _mean_into(out: Array, outcome: Outcome) -> None:
    if kernels.on_host(out) or outcome.on_device:
        outcome.mean_into(out)
    else:
        mean = scratch(out.size, out.dtype, "mean")
        outcome.mean_into(mean)
        out[:] = mean


def _known(pending: PendingBuffer, numbers: Array) -> dict[str, MeanEntries]:
    """What the next step may need of the means, by parameter: of a dense one all numbers, in memory that nobody else
    writes to; of a device's also the entries, which the host knows already."""
    known: dict[str, MeanEntries] = {} if pending.in_place else {item.name: (None, x) for item, x in pending.dense}
    if not kernels.on_host(numbers):
        for segment, outcome in zip(pending.layout.segments, pending.outcomes, strict=True):
            entries = outcome.mean_entries()
            known |= {} if entries is None else _of_members(segment, *entries)
    return known


def _of_members(segment: Segment, indices: Array, values: Array) -> dict[str, MeanEntries]:
    """A segment's entries that are not zero, by parameter."""
    used, found = values != 0, dict[str, MeanEntries]()
    indices, values = indices[used], values[used]
    for name, start, stop, _ in segment.spans:
        first, last = np.searchsorted(indices, (start, stop))
        places = (indices[first:last] - start).astype(kernels.index_dtype(stop - start))
        found[name] = places, values[first:last]
    return found


def for_sparse(plan: Scheme) -> Scheme:
    """A step's scheme for sparse gradients, whose momentum is the optimizer's."""
    return plan if plan.memory.held_momentum is None else replace(plan, memory=Residual())
