"""`Trace`: steps on a time line, in the JSON that chrome://tracing and ui.perfetto.dev show.

One process for a rank, one track for the thread that computes and one for the communication thread. Times are
microseconds since the epoch, as in torch.profiler's traces, so that those of ranks on one machine fit together.
"""

from __future__ import annotations

import json
import time
from typing import Any

from sparsewire.core.files import PathLike, write_file
from sparsewire.errors import InputError

TRACKS = ("compute", "communication")
STEPS = 10
MOST = 1000  # steps: a file of some ten MB


class Trace:
    """The events of so many steps; written whole, when they are there."""

    def __init__(self, path: PathLike, steps: int = STEPS) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST:
            raise InputError(f"steps={steps!r}: a trace has 1 … {MOST} steps, as in link.trace(path, steps=10)")
        self._path, self._left = path, steps
        self._offset = time.time() - time.perf_counter()
        self._rank = 0
        self._events: list[dict[str, Any]] = []
        self.write()  # what is wrong with the path is said at once

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def begin(self, rank: int) -> None:
        self._rank = rank
        self._name("process_name", 0, f"rank {rank}")
        for track in TRACKS:
            self._name("thread_name", TRACKS.index(track), track)

    def span(self, track: str, name: str, start: float, end: float, facts: dict[str, Any] | None = None) -> None:
        event = {"ph": "X", "name": name, "cat": "sparsewire", **self._at(track, start), "dur": 1e6 * (end - start)}
        self._events.append({**event, "args": facts or {}})

    def stage(self, name: str, start: float, end: float) -> None:
        """What a clock measures, on the communication thread."""
        self.span("communication", name, start, end)

    def instant(self, name: str, moment: float) -> None:
        self._events.append({"ph": "i", "s": "t", "name": name, "cat": "sparsewire", **self._at("compute", moment)})

    def end_step(self, step: int) -> None:
        self._left -= 1

    def write(self) -> None:
        """Outer events first where two begin together, as viewers nest them."""
        ordered = sorted(self._events, key=lambda event: (event.get("ts", 0.0), -event.get("dur", 0.0)))
        text = json.dumps({"traceEvents": ordered, "displayTimeUnit": "ms"})
        write_file(self._path, lambda file: file.write(text.encode()))

    def _at(self, track: str, moment: float) -> dict[str, Any]:
        return {"pid": self._rank, "tid": TRACKS.index(track), "ts": 1e6 * (moment + self._offset)}

    def _name(self, kind: str, thread: int, name: str) -> None:
        self._events.append({"ph": "M", "name": kind, "pid": self._rank, "tid": thread, "args": {"name": name}})
