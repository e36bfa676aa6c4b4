"""`StepTimer`: when a step's buckets were ready and its exchanges went on, by this rank's clock or its device's.

A timer gives instants: seconds of the host's clock, or events of a device, whose distance is known when they have
happened. So a step that is noted (`TimedStep`) is read when its numbers are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..cost.step import BucketTiming
from .samples import Sample

Instant = Any
Elapsed = Callable[[Instant, Instant], float]  # seconds from the first to the second


def by_clock(begun: float, ended: float) -> float:
    return ended - begun


@dataclass(frozen=True)
class TimedStep:
    """A step between two instants: when its buckets were ready, with their sizes, and its exchanges; or, where these
    were not timed, the seconds of dense ones."""

    before: tuple[Instant, ...]  # the last of these
    ended: tuple[Instant, ...]  # and of these
    ready: tuple[tuple[Instant, int, int], ...]
    spans: tuple[tuple[Instant, Instant], ...]
    busy: float
    elapsed: Elapsed

    def sample(self) -> Sample:
        """The step's numbers; waits for a device's events."""
        start = max(map(self._at, self.before))
        ready = [(self._at(instant), numel, nbytes) for instant, numel, nbytes in self.ready]
        first = ready[0][0]
        buckets = tuple(BucketTiming(at - first, numel, nbytes) for at, numel, nbytes in ready)
        busy = _length((self._at(one), self._at(other)) for one, other in self.spans) if self.spans else self.busy
        return Sample(max(map(self._at, self.ended)) - start, first - start, busy, buckets)

    def _at(self, instant: Instant) -> float:
        return self.elapsed(self.before[0], instant)


class StepTimer:
    """Notes buckets, and exchanges as they end, from any thread; makes a `TimedStep` when the next step begins."""

    def __init__(self, timer: Callable[[], Instant] = time.perf_counter, elapsed: Elapsed = by_clock) -> None:
        self.timer, self._elapsed = timer, elapsed
        self.clear()

    def clear(self) -> None:
        """The next step follows none."""
        self._taken = False
        self._before: tuple[Instant, ...] = ()
        self._ended: Instant = None
        self._busy = 0.0
        self._ready: list[tuple[Instant, int, int]] = []
        self._spans: list[tuple[Instant, Instant]] = []

    def take(self) -> TimedStep | None:
        """The step whose exchanges have ended, if it followed one itself; once."""
        taken, self._taken = self._taken, True
        return None if taken else self._timed()

    def begin(self) -> TimedStep | None:
        """A step's first bucket is ready: the step before it, unless it was taken."""
        timed, ends = self.take(), self._ends()
        self.clear()
        self._before = ends
        return timed

    def bucket(self, numel: int, nbytes: int) -> None:
        self._ready.append((self.timer(), numel, nbytes))

    def span(self, begun: Instant) -> None:
        """An exchange that began then has ended."""
        self._spans.append((begun, self.timer()))

    def end(self, busy: float) -> None:
        """All of the step's exchanges have ended, after so many seconds of dense ones."""
        self._ended, self._busy = self.timer(), busy

    def _ends(self) -> tuple[Instant, ...]:
        return (self._ended,) if self._ended is not None else tuple(end for _, end in self._spans)

    def _timed(self) -> TimedStep | None:
        before, ends = self._before, self._ends()
        if not before or not ends or not self._ready:
            return None
        return TimedStep(before, ends, tuple(self._ready), tuple(self._spans), self._busy, self._elapsed)


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """Of the union of spans, which may overlap."""
    total, reached = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total
