"""What `sparsewire lab train` is doing, and for how long: a live line on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..net.launch import Event
from .cells import Cell


class Progress:
    """Estimates go by the cells that came to an end: those of the same workload, rate and method, if there are any."""

    def __init__(self, cells: Sequence[Cell], before: int) -> None:
        self._left, self._all, self._live = list(cells), len(cells), sys.stderr.isatty()
        self._spent: list[tuple[Cell, float]] = []
        if before:
            self._say(f"finished before: {before} of {before + len(cells)}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def start(self, cell: Cell) -> None:
        self._cell, self._begin, self._first = self._left.pop(0), time.monotonic(), 0.0
        self._show("starting", None)

    def step(self, event: Event) -> None:
        now = time.monotonic()
        self._first = self._first or now
        done, steps = event["step"], self._cell.steps
        left = (now - self._first) / max(1, done - 1) * (steps - done) if done > 1 else None
        self._show(f"step {done} of {steps}, loss {event['loss']:.4g}, {event['seconds']:.2f} s", left)

    def finish(self, record: dict[str, Any]) -> None:
        if not record.get("error"):
            self._spent.append((self._cell, time.monotonic() - self._begin))
        found = f"failed: {record['error']}" if record.get("error") else f"{record['step_ms']:,.1f} ms a step"
        self._say(", ".join(filter(None, [f"{self._place()} {self._cell.title}: {found}", self._words(0.0)])))

    def _words(self, this: float | None) -> str:
        """What is left of this cell, and of all."""
        if this is None:
            return ""
        guesses = [self._guess(cell) for cell in self._left]
        if any(guess is None for guess in guesses):
            return f"{clock(this)} left of this cell" if this else ""
        whole = this + sum(guess for guess in guesses if guess is not None)
        return f"{clock(whole)} left" if whole else ""

    def _guess(self, cell: Cell) -> float | None:
        for alike in (("workload", "rate", "method"), ("workload", "rate"), ("workload",), ()):
            some = [spent for other, spent in self._spent if all(getattr(other, a) == getattr(cell, a) for a in alike)]
            if some:
                return statistics.fmean(some)
        return None

    def _place(self) -> str:
        return f"[{self._all - len(self._left)}/{self._all}]"

    def _show(self, what: str, left: float | None) -> None:
        """On one row, as only one can be cleared; what is cut away is last."""
        if self._live:
            line = f"{self._place()} {'; '.join(filter(None, [self._words(left), what, self._cell.title]))}"
            print(f"\r\033[K{_fitting(line)}", end="", file=sys.stderr, flush=True)

    def _say(self, line: str) -> None:
        print(f"\r\033[K{line}" if self._live else line, file=sys.stderr, flush=True)


def _fitting(line: str) -> str:
    """So much of it as a row of the terminal shows; its last column stays free, as some wrap when it is taken."""
    most = shutil.get_terminal_size().columns - 1
    return line if len(line) <= most else f"{line[: max(0, most - 1)]}…"


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(4000)
    ('1 min 15 s', '1 h 6 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
