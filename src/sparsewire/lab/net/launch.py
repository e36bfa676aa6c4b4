"""Calls a function on every rank, each a process on this machine, and collects what they return.

Each process runs `net/worker.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsewire.errors import SparsewireError

from .ranks import TICK, Endpoint, Rank, Ranks, threads
from .stopping import Guard

PATIENCE = 5.0  # seconds in which other ranks may fail with an error that says more
LOST = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|socket closed", re.IGNORECASE)
KEPT = 65_536  # bytes of a rank's standard error
Event = dict[str, Any]


class RankError(SparsewireError):
    """A rank ended without a result."""


def launch_ranks(
    job: str,
    settings: Mapping[str, Any],
    endpoints: Sequence[Endpoint],
    on_event: Callable[[Event], None] = lambda event: None,
    limit: float = 600.0,
) -> list[Any]:
    """Calls `module:function` with a `Worker` and the settings in one process per endpoint; the results, in rank order.

    Events that rank 0 emits are passed to `on_event` as they arrive. No process is left when this returns or raises.
    """
    facts = {"job": job, "settings": settings, "size": len(endpoints), "limit": limit}
    with (
        tempfile.TemporaryDirectory(prefix="sparsewire-", ignore_cleanup_errors=True) as folder,
        Guard('rm -rf "$1"', folder),
    ):
        order = json.dumps({**facts, "store": f"{folder}/store"})
        reports, started = [Report() for _ in endpoints], []
        for rank, (endpoint, report) in enumerate(zip(endpoints, reports, strict=True)):
            words = [*endpoint.prefix, sys.executable, "-m", f"{__package__}.worker", str(rank), order]
            started.append(Rank(words, _environment(len(endpoints), endpoint), (report.take, report.take_error)))
        with Ranks(started, stdin=subprocess.PIPE, grace=0) as ranks:
            return _collect(ranks, reports, on_event, time.monotonic() + limit, limit)


def _environment(size: int, endpoint: Endpoint) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads(size))}
    return {**os.environ, **ours, **endpoint.environment}


class Report:
    """The output of a rank: lines of JSON, which are events, and at last its outcome, a result or the error that ended
    the rank."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.outcome: Event = {}
        self.status: int | None = None  # while it runs
        self._rest = self._stderr = b""

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):  # a command prefix may print as well
                self._add(json.loads(line))

    def take_error(self, data: bytes) -> None:
        self._stderr = (self._stderr + data)[-KEPT:]

    def _add(self, event: Event) -> None:
        if "result" in event or "error" in event:
            self.outcome = event
        else:
            self.events.append(event)

    def failure(self, rank: int) -> str | None:
        """The error that it told; after a crash the last line of its standard error, or its exit status."""
        if self.outcome or self.status is None:
            return self.outcome.get("error")
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix(f"[rank{rank}]: ") if lines else f"exit status {self.status}"


def _collect(
    ranks: Ranks, reports: Sequence[Report], on_event: Callable[[Event], None], deadline: float, limit: float
) -> list[Any]:
    failures: dict[int, str] = {}
    while not all("result" in report.outcome for report in reports):
        for rank, status in ranks.ended(max(0.0, min(TICK, deadline - time.monotonic()))):
            reports[rank].status = status
        for rank, report in enumerate(reports):
            if rank not in failures and (failure := report.failure(rank)) is not None:
                failures[rank], deadline = failure, min(deadline, time.monotonic() + PATIENCE)
        _pass_events(reports[0], on_event, deadline)
        late = time.monotonic() >= deadline
        if error := choose_error(failures, awaited=ranks.running and not late):
            raise error
        if late:
            raise RankError(f"the ranks did not finish in {limit:g} s")
    _pass_events(reports[0], on_event, deadline)
    return [report.outcome["result"] for report in reports]


def _pass_events(report: Report, on_event: Callable[[Event], None], deadline: float) -> None:
    while report.events and time.monotonic() < deadline:
        on_event(report.events.popleft())


def choose_error(failures: Mapping[int, str], awaited: bool) -> RankError | None:
    """The first failure that is more than the loss of another rank; while others are awaited, none but that."""
    more = [rank for rank, error in failures.items() if not LOST.search(error)]
    rank = next(iter(more if more or awaited else failures), None)
    return None if rank is None else RankError(f"rank {rank} failed: {failures[rank]}")
