"""What a rank notes of its steps, and what several of them come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..cost.step import Compute, Part

CALM = 1.25  # times the lower median: longer ones have a pause in them, and do not count
ALIKE = 1.5  # times: what is computed differs by more where the training has changed
WINDOWS = 4  # whose mean is what schemes' steps compute


@dataclass(frozen=True)
class Sample:
    """A step as this rank saw it: its seconds, those before its first bucket, those in which a dense exchange went on
    (0 if that was not timed), and its buckets."""

    seconds: float
    rest: float
    busy: float
    parts: tuple[Part, ...]


def typical(samples: Sequence[Sample], name: str) -> float:
    """The mean of what they have under this name, without zeros and pauses.

    >>> typical([Sample(seconds, 0.0, 0.0, ()) for seconds in (1.0, 9.0, 1.2)], "seconds")
    1.1
    """
    found = [value for sample in samples if (value := getattr(sample, name))]
    if not found:
        return 0.0
    most = CALM * statistics.median_low(found)
    return statistics.fmean(value for value in found if value <= most)


@dataclass
class Computing:
    """What steps compute that go by a scheme. How much differs with the scheme, but what is known of each is compared
    with what the model says of it: so it is one for all of them, the mean over some checks."""

    mean: Compute | None = None
    windows: int = 0

    def add(self, found: Compute) -> Compute:
        if self.mean is None or not _alike(self.mean, found):
            self.mean, self.windows = found, 1
        else:
            self.windows = min(WINDOWS, self.windows + 1)
            self.mean = _mixed(self.mean, found, 1 / self.windows)
        return self.mean


def _alike(one: Compute, other: Compute) -> bool:
    return one.numels == other.numels and one.seconds < ALIKE * other.seconds and other.seconds < ALIKE * one.seconds


def _mixed(old: Compute, new: Compute, share: float) -> Compute:
    pairs = zip(old.parts, new.parts, strict=True)
    parts = [replace(b, ready=a.ready + share * (b.ready - a.ready)) for a, b in pairs]
    return replace(new, rest=old.rest + share * (new.rest - old.rest), parts=parts)
