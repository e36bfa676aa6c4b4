"""How sparse which step is: dense at first, then by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from .errors import SchemeError
from .scheme import Scheme

Schedule = Callable[[int], float | None] | Sequence[tuple[int, float]]


def dgc_schedule(steps: int, stages: int = 4, start: float = 0.25, factor: float = 0.25) -> list[tuple[int, float]]:
    """Deep Gradient Compression's warm-up: 25 %, 6.3 %, 1.6 %, 0.4 %, `steps` each, then the scheme's own ratio.

    By epoch: `dgc_schedule(steps=steps_per_epoch)`.

    >>> dgc_schedule(100, stages=2)
    [(100, 0.25), (200, 0.0625)]
    """
    return [((stage + 1) * steps, start * factor**stage) for stage in range(stages)]


@dataclass(frozen=True)
class SchemeSchedule:
    """The scheme for each step; None is a dense one."""

    scheme: Scheme
    warmup_steps: int = 0
    schedule: Schedule | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None and "ratio" not in {item.name for item in fields(self.scheme.select)}:
            raise SchemeError(f"a ratio schedule needs a selection with a ratio, not {self.scheme.select}")

    def at(self, step: int) -> Scheme | None:
        if step < self.warmup_steps:
            return None
        ratio = self._ratio(step - self.warmup_steps)
        return self.scheme if ratio is None else self._with_ratio(ratio)

    def _ratio(self, step: int) -> float | None:
        if self.schedule is None or callable(self.schedule):
            return self.schedule(step) if self.schedule else None
        return next((ratio for until, ratio in self.schedule if step < until), None)

    def _with_ratio(self, ratio: float) -> Scheme:
        rest = {item.name: None for item in fields(self.scheme.select) if item.name in ("k", "value")}
        return replace(self.scheme, select=replace(self.scheme.select, **{**rest, "ratio": float(ratio)}))
