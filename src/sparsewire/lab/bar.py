"""A live row on a terminal, by rich: a bar, how far it is, and words that are cut where the row ends."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import Any

PAUSE = 0.1  # seconds between two pictures of the row


class Bar:
    """Nothing is shown where there is no terminal, or no rich.

    Whoever calls redraws the row: rich's own thread would be there while processes are started.
    """

    def __init__(self, total: int) -> None:
        self._row: Any = _make_row() if sys.stderr.isatty() and find_spec("rich") else None
        self._task = self._row and self._row.add_task("", total=total)
        self._shown = 0.0

    def __enter__(self) -> Bar:
        if self._row:
            self._row.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._row:
            self._row.stop()

    def show(self, words: str, done: int, total: int | None = None) -> None:
        if self._row:
            self._row.update(self._task, description=words, completed=done, total=total)
            if time.monotonic() >= self._shown + PAUSE:
                self._row.refresh()
                self._shown = time.monotonic()

    def say(self, line: str) -> None:
        """A line that stays, above the row."""
        if self._row:
            self._row.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)


def _make_row() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = [BarColumn(10), MofNCompleteColumn(), TextColumn("{task.description}", markup=False, table_column=words)]
    return Progress(*columns, console=Console(stderr=True), transient=True, expand=True, auto_refresh=False)
