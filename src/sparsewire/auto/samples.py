"""What a rank notes of its steps, and what several of them come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from ..cost.step import Compute, Part

CALM = 1.25  # times the lower median: longer ones have a pause in them, and do not count
ALIKE = 1.5  # times: what is computed differs by more where the training has changed


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


def alike(one: Compute, other: Compute) -> bool:
    """Whether it is the same training that computes this."""
    return one.numels == other.numels and one.seconds < ALIKE * other.seconds and other.seconds < ALIKE * one.seconds


def save(compute: Compute | None) -> list[Any] | None:
    """Plain types."""
    return None if compute is None else [compute.rest, [list(astuple(part)) for part in compute.parts]]


def load(saved: Sequence[Any] | None) -> Compute | None:
    """What `save` gave."""
    return None if saved is None else Compute(saved[0], [Part(*part) for part in saved[1]])
