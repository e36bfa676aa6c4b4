"""The progress of `sparsewire lab train`: a live line on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..bar import Bar
from ..net.launch import Event
from .cells import Cell


class Progress:
    """Estimates go by the cells that came to an end: those of the same workload, rate and method, if there are any."""

    def __init__(self, cells: Sequence[Cell], before: int) -> None:
        self._left, self._all, self._bar = list(cells), len(cells), Bar(len(cells))
        self._spent: list[tuple[Cell, float]] = []
        if before:
            self._bar.say(f"finished before: {before} of {before + len(cells)}")

    def __enter__(self) -> Progress:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def start(self, cell: Cell) -> None:
        self._cell, self._begin, self._first = self._left.pop(0), time.monotonic(), 0.0
        self._show("starting", 0, None)

    def step(self, event: Event) -> None:
        now = time.monotonic()
        self._first = self._first or now
        done, steps = event["step"], self._cell.steps
        left = (now - self._first) / max(1, done - 1) * (steps - done) if done > 1 else None
        self._show(f"loss {event['loss']:.4g}, {event['seconds']:.2f} s", done, left)

    def finish(self, record: dict[str, Any]) -> None:
        if not record.get("error"):
            self._spent.append((self._cell, time.monotonic() - self._begin))
        outcome = f"failed: {record['error']}" if record.get("error") else f"{record['step_ms']:,.1f} ms a step"
        self._bar.say(", ".join(filter(None, [f"{self._position()} {self._cell.title}: {outcome}", self._words(0.0)])))

    def _words(self, this: float | None) -> str:
        """The time that is left of this cell, and of all cells."""
        if this is None:
            return ""
        guesses = [self._guess(cell) for cell in self._left]
        if any(guess is None for guess in guesses):
            return f"{clock(this)} left of this cell" if this else ""
        whole = this + sum(guess for guess in guesses if guess is not None)
        return f"{clock(whole)} left" if whole else ""

    def _guess(self, cell: Cell) -> float | None:
        for alike in (("workload", "rate", "method"), ("workload", "rate"), ("workload",), ()):
            similar = [spent for other, spent in self._spent if _agree(cell, other, alike)]
            if similar:
                return statistics.fmean(similar)
        return None

    def _position(self) -> str:
        return f"[{self._all - len(self._left)}/{self._all}]"

    def _show(self, what: str, done: int, left: float | None) -> None:
        """Shows the line; the words that a narrow terminal may cut away come last."""
        line = f"{self._position()} {'; '.join(filter(None, [self._words(left), what, self._cell.title]))}"
        self._bar.show(line, done, self._cell.steps)


def _agree(cell: Cell, other: Cell, names: Iterable[str]) -> bool:
    return all(getattr(cell, name) == getattr(other, name) for name in names)


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(4000)
    ('1 min 15 s', '1 h 6 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
