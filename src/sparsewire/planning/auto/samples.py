"""What a rank measures of its steps, and the numbers that all ranks agree on from that."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire.kernels import Array

from ..cost.step import BucketTiming, Compute

WINDOW = 8  # samples, at most
NOISE = 1.3  # times: durations and rates that differ by less may be the same
CHANGED = 3.0  # times: rates that differ by more are of different networks


@dataclass(frozen=True)
class Sample:
    """A step as this rank saw it: its seconds, those before its first bucket, those in which a dense exchange went on
    (0 if that was not timed), and its buckets."""

    seconds: float
    rest: float
    busy: float
    buckets: tuple[BucketTiming, ...]


def calm(durations: Iterable[float]) -> list[float]:
    """The durations without a pause in them, which would make them longer than others; zeros are left out.

    >>> calm([1.0, 9.0, 0.0, 1.2])
    [1.0, 1.2]
    """
    measured = [seconds for seconds in durations if seconds]
    most = NOISE * statistics.median_low(measured) if measured else 0.0
    return [seconds for seconds in measured if seconds <= most]


def mean(durations: Iterable[float]) -> float:
    """The mean of the durations without a pause; 0 if there are none."""
    kept = calm(durations)
    return statistics.fmean(kept) if kept else 0.0


def lower(durations: Sequence[float]) -> float:
    """The longest of the shorter third, as steps are disturbed only to be longer; 0 if there are none."""
    return sorted(durations)[max(0, (len(durations) + 1) // 3 - 1)] if durations else 0.0


def report(samples: Sequence[Sample], probe: tuple[float, float]) -> Array:
    """One rank's measurements, for a maximum over the ranks: negative where the least counts."""
    seconds = np.zeros(WINDOW)
    seconds[WINDOW - len(samples) :] = [sample.seconds for sample in samples]
    timed = lower([sample.seconds for sample in samples if sample.busy]) or max(seconds)
    rest, busy = (mean(getattr(sample, name) for sample in samples) for name in ("rest", "busy"))
    # Of a table only the rows of this rank's batch have a gradient, so how large its bucket is, is agreed on, too.
    buckets = samples[-1].buckets if samples else ()
    columns = (getattr(bucket, name) for name in ("ready", "numel", "nbytes") for bucket in buckets)
    return np.array([rest, timed, -busy, -probe[0], -probe[1], *seconds, *-seconds, *columns], np.float64)


@dataclass(frozen=True)
class Agreed:
    """The maximum of all ranks' reports: what a step computes, the seconds of the last steps, those of steps whose
    exchange was timed, those in which dense exchanges went on, and those of a probe's two sizes."""

    compute: Compute
    steps: list[float]
    timed: float
    busy: float
    probe: tuple[float, float]

    @classmethod
    def of(cls, numbers: Array) -> Agreed:
        rest, timed, busy, small, large, *steps = numbers.tolist()
        longest, shortest = steps[:WINDOW], steps[WINDOW : 2 * WINDOW]
        rows = np.reshape(steps[2 * WINDOW :], (3, -1)).T.tolist()
        buckets = [BucketTiming(ready, int(numel), int(nbytes)) for ready, numel, nbytes in rows]
        # Ranks end a step together, but for the noise of their clocks and cores.
        seconds = calm((a - b) / 2 for a, b in zip(longest, shortest, strict=True) if b)
        return cls(Compute(rest, buckets), seconds, timed, -busy, (-small, -large))
