"""Starts one process per rank on this machine, collects their results, and always ends them.

Each process runs `net/worker.py`.
"""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SparsewireError
from .stopping import Guard

LOOPBACK = "lo" if sys.platform == "linux" else None
PATIENCE = 5.0  # seconds in which other ranks may fail with an error that says more
LOST = re.compile(r"connection (was )?(closed|reset|refused)|broken pipe|socket closed", re.IGNORECASE)
Event = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a rank runs: a prefix for its command (`ip netns exec …`), the network interface that it uses, and its
    address there."""

    prefix: tuple[str, ...] = ()
    interface: str | None = LOOPBACK
    address: str = "127.0.0.1"

    @property
    def environment(self) -> dict[str, str]:
        return {"GLOO_SOCKET_IFNAME": self.interface} if self.interface else {}


class RankError(SparsewireError):
    """A rank ended without a result."""


def launch_ranks(
    job: str,
    settings: Mapping[str, Any],
    places: Sequence[Place],
    on_event: Callable[[Event], None] = lambda event: None,
    limit: float = 600.0,
) -> list[Any]:
    """Calls `module:function` with a `Worker` and the settings in one process per place; the results, in rank order.

    Events that rank 0 emits are passed to `on_event` as they arrive. No process is left when this returns or raises.
    """
    processes: list[WorkerProcess] = []
    events: Events = queue.SimpleQueue()
    facts = {"job": job, "settings": settings, "size": len(places), "limit": limit}
    with (
        tempfile.TemporaryDirectory(prefix="sparsewire-", ignore_cleanup_errors=True) as folder,
        Guard('rm -rf "$1"', folder),
    ):
        order = json.dumps({**facts, "store": f"{folder}/store"})
        try:
            for rank, place in enumerate(places):
                processes.append(WorkerProcess(rank, len(places), place, order, Path(folder), events))
            return _collect(processes, events, on_event, limit)
        finally:
            for process in processes:
                process.end()


Events = queue.SimpleQueue[tuple[int, Event | None]]


class WorkerProcess:
    """One rank's process. It prints lines of JSON, and exits when its standard input closes, so never outlives us."""

    def __init__(self, rank: int, size: int, place: Place, order: str, folder: Path, events: Events) -> None:
        self.rank, self._events, self._errors = rank, events, folder / f"stderr {rank}"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [*place.prefix, sys.executable, "-m", f"{__package__}.worker", str(rank), order],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(size, place),
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):  # a command prefix may print as well
                self._events.put((self.rank, json.loads(line)))
        self._events.put((self.rank, None))

    def failure(self) -> str:
        """The last line of its standard error; its exit status if it wrote none, as after a crash."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix(f"[rank{self.rank}]: ") if lines else f"exit status {self._process.wait()}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def _environment(size: int, place: Place) -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads(size))}
    return {**os.environ, **ours, **place.environment}


def threads(ranks: int) -> int:
    """A rank's share of the cores."""
    return max(1, (os.cpu_count() or 1) // ranks)


def _collect(
    processes: list[WorkerProcess], events: Events, on_event: Callable[[Event], None], limit: float
) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + limit
    while len(results) < len(processes):
        try:
            rank, event = _next(events, deadline)
        except queue.Empty:
            raise RankError(f"the ranks did not finish in {limit:g} s") from None
        if event is None and rank not in results:
            raise _why(rank, processes, events, {*results})
        if event is not None and "result" in event:
            results[rank] = event["result"]
        elif event is not None and rank == 0:
            on_event(event)
    return [results[rank] for rank in range(len(processes))]


def _next(events: Events, deadline: float) -> tuple[int, Event | None]:
    """`queue.Empty` after the deadline, even if there are events."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise queue.Empty
    return events.get(timeout=left)


def _why(rank: int, processes: list[WorkerProcess], events: Events, done: set[int]) -> RankError:
    """The error of this rank; if it only lost another, of the first other that says more."""
    deadline, error = time.monotonic() + PATIENCE, processes[rank].failure()
    first = RankError(f"rank {rank} failed: {error}")
    while LOST.search(error) and len(done) + 1 < len(processes):
        try:
            other, event = _next(events, deadline)
        except queue.Empty:
            return first
        if event is None and other not in done:
            rank, error = other, processes[other].failure()
        if event is None or "result" in event:
            done.add(other)
    return first if LOST.search(error) else RankError(f"rank {rank} failed: {error}")
