"""`StepTimer`: when a step's buckets were ready and its exchanges went on, by this rank's clock."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..cost.step import BucketTiming
from .samples import Sample
from .trial import Timer


class StepTimer:
    """Notes buckets, and exchanges as they end, from any thread; makes a `Sample` when the next step begins."""

    def __init__(self, timer: Timer = time.perf_counter) -> None:
        self.timer = timer
        self.clear()

    def clear(self) -> None:
        """The next step follows none."""
        self._taken = False
        self._before: float | None = None
        self._ended: float | None = None
        self._busy = 0.0
        self._ready: list[tuple[float, int, int]] = []
        self._spans: list[tuple[float, float]] = []

    def take(self) -> Sample | None:
        """The step whose exchanges have ended, if it followed one itself; once."""
        taken, self._taken = self._taken, True
        return None if taken else self._sample()

    def begin(self) -> Sample | None:
        """A step's first bucket is ready: the step before it, unless it was taken."""
        sample, ended = self.take(), self._end()
        self.clear()
        self._before = ended
        return sample

    def bucket(self, numel: int, nbytes: int) -> None:
        self._ready.append((self.timer(), numel, nbytes))

    def span(self, begun: float) -> None:
        """An exchange that began then has ended."""
        self._spans.append((begun, self.timer()))

    def end(self, busy: float) -> None:
        """All of the step's exchanges have ended, after so many seconds of dense ones."""
        self._ended, self._busy = self.timer(), busy

    def _end(self) -> float | None:
        return self._ended if self._ended is not None else max((end for _, end in self._spans), default=None)

    def _sample(self) -> Sample | None:
        ended = self._end()
        if self._before is None or ended is None or not self._ready:
            return None
        first = self._ready[0][0]
        buckets = tuple(BucketTiming(at - first, numel, nbytes) for at, numel, nbytes in self._ready)
        busy = _length(self._spans) if self._spans else self._busy
        return Sample(ended - self._before, first - self._before, busy, buckets)


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """Of the union of spans, which may overlap."""
    total, reached = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total
