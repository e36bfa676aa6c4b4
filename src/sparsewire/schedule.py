"""How sparse which step is: dense at first, then by a schedule of ratios."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from .errors import SchemeError
from .scheme import Scheme

Ratios = Callable[[int], float | None] | Sequence[tuple[int, float]]


def dgc_schedule(steps: int, stages: int = 4, start: float = 0.25, factor: float = 0.25) -> list[tuple[int, float]]:
    """Deep Gradient Compression's warm-up: 25 %, 6.3 %, 1.6 %, 0.4 %, `steps` each, then the scheme's own ratio.

    By epoch: `dgc_schedule(steps=steps_per_epoch)`.

    >>> dgc_schedule(100, stages=2)
    [(100, 0.25), (200, 0.0625)]
    """
    return [((stage + 1) * steps, start * factor**stage) for stage in range(stages)]


@dataclass(frozen=True)
class SchemeSchedule:
    """The scheme for each step; None is a dense one.

    `ratios` is a function of the step after the warm-up, or (until, ratio) pairs in ascending order; None, or beyond
    the last pair, is the scheme's own ratio.
    """

    scheme: Scheme
    warmup_steps: int = 0
    ratios: Ratios | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.warmup_steps) or self.warmup_steps < 0:
            raise SchemeError(f"warmup_steps is a whole number of steps, 0 or more, not {self.warmup_steps!r}")
        if self.ratios is None:
            return
        if "ratio" not in {item.name for item in fields(self.scheme.select)}:
            raise SchemeError(f"ratio_schedule needs a selection with a ratio, not {self.scheme.select}")
        if not callable(self.ratios):
            object.__setattr__(self, "ratios", _checked_pairs(self.ratios))
        self.at(self.warmup_steps)

    def at(self, step: int) -> Scheme | None:
        if step < self.warmup_steps:
            return None
        ratio = self._ratio(step - self.warmup_steps)
        return self.scheme if ratio is None else self._with_ratio(ratio)

    def _ratio(self, step: int) -> float | None:
        if self.ratios is None:
            return None
        if not callable(self.ratios):
            return next((ratio for until, ratio in self.ratios if step < until), None)
        try:
            ratio = self.ratios(step)
        except Exception as error:
            raise SchemeError(f"ratio_schedule({step}) raised {type(error).__name__}: {error}") from error
        return None if ratio is None else _checked_ratio(ratio, f"ratio_schedule({step}) gave")

    def _with_ratio(self, ratio: float) -> Scheme:
        rest = {item.name: None for item in fields(self.scheme.select) if item.name in ("k", "value")}
        return replace(self.scheme, select=replace(self.scheme.select, **{**rest, "ratio": ratio}))


def is_whole(value: Any) -> bool:
    """An integer of any kind, but no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _checked_pairs(ratios: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = [(until, ratio) for until, ratio in ratios]
    except (TypeError, ValueError):
        raise SchemeError(f"ratio_schedule is a function of the step or (until, ratio) pairs, not {ratios!r}") from None
    before = 0
    for until, _ in pairs:
        if not is_whole(until) or until <= before:
            raise SchemeError(f"ratio_schedule: steps are whole numbers that ascend, but {until!r} follows {before!r}")
        before = until
    return tuple((int(until), _checked_ratio(ratio, f"ratio_schedule until {until} has")) for until, ratio in pairs)


def _checked_ratio(ratio: Any, where: str) -> float:
    if isinstance(ratio, bool) or not isinstance(ratio, numbers.Real) or not 0 < float(ratio) <= 1:
        raise SchemeError(f"{where} {ratio!r}; a ratio lies in 0 < ratio ≤ 1")
    return float(ratio)
