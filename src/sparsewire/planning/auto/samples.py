"""What a rank notes of its steps, and what several of them come to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from ..cost.step import Compute, Part

WINDOW = 8  # samples, at most
CORRECTION = (0.01, 100.0)
CALM = 1.25  # times the lower median: longer ones have a pause in them, and do not count
OTHER = 3.0  # times: rates that differ by more are of different links
ALIKE = 1.5  # times: what is computed differs by more where the training has changed


@dataclass(frozen=True)
class Sample:
    """A step as this rank saw it: its seconds, those before its first bucket, those in which a dense exchange went on
    (0 if that was not timed), and its buckets."""

    seconds: float
    rest: float
    busy: float
    parts: tuple[Part, ...]


def calm(found: Iterable[float]) -> list[float]:
    """Those without a pause; zeros are none.

    >>> calm([1.0, 9.0, 0.0, 1.2])
    [1.0, 1.2]
    """
    some = [value for value in found if value]
    most = CALM * statistics.median_low(some) if some else 0.0
    return [value for value in some if value <= most]


def mean(found: Iterable[float]) -> float:
    """Of those without a pause; 0 if there are none."""
    some = calm(found)
    return statistics.fmean(some) if some else 0.0


def lower(found: Sequence[float]) -> float:
    """The longest of the shorter third, as steps are disturbed only to be longer; 0 if there are none."""
    return sorted(found)[max(0, (len(found) + 1) // 3 - 1)] if found else 0.0


@dataclass
class Known:
    """Of the last steps that went one way: what they took, in times of what the model says, and what they computed.

    What the first of them computed stands for all, as long as the training is the same: it differs from check to check
    and from scheme to scheme, and would else set what is known of one way against what is known of another.
    """

    compute: Compute | None = None
    ratios: list[float] = field(default_factory=list)
    byte: float = 0.0  # the link's seconds per byte at which they were measured

    @property
    def ratio(self) -> float | None:
        return lower(self.ratios) or None

    def is_like(self, compute: Compute) -> bool:
        """Whether it is the same training that computes this."""
        own, now = self.compute, compute.seconds
        return own is not None and own.numels == compute.numels and now / ALIKE <= own.seconds <= now * ALIKE

    def begin(self, compute: Compute) -> None:
        """Nothing is known any more."""
        self.compute, self.ratios = compute, []

    def add(self, ratios: Iterable[float], byte: float) -> None:
        """What was found on a link of another rate says little of this one."""
        if not self.byte / OTHER <= byte <= self.byte * OTHER:
            self.ratios = []
        self.byte = byte
        self.ratios = [*self.ratios, *(min(CORRECTION[1], max(CORRECTION[0], one)) for one in ratios)][-WINDOW:]

    def saved(self) -> dict[str, Any]:
        """Plain types."""
        own = self.compute
        computed = None if own is None else [own.rest, [list(astuple(part)) for part in own.parts]]
        return {"compute": computed, "ratios": list(self.ratios), "byte": self.byte}

    @classmethod
    def loaded(cls, state: Mapping[str, Any]) -> Known:
        own = state["compute"]
        compute = None if own is None else Compute(own[0], [Part(*part) for part in own[1]])
        return cls(compute, list(state["ratios"]), state.get("byte", 0.0))
