"""Ranks as processes of this machine: started, listened to, always ended. `lab/rank.py` is what each of them runs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SparsewireError

LOOPBACK = "lo" if sys.platform == "linux" else None
Event = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a rank runs: words before its command (`ip netns exec …`), and the network interface it uses."""

    prefix: tuple[str, ...] = ()
    interface: str | None = LOOPBACK


class RankError(SparsewireError):
    """A rank ended without a result."""


def run_ranks(
    job: str,
    settings: Mapping[str, Any],
    places: Sequence[Place],
    on_event: Callable[[Event], None] = lambda event: None,
    limit: float = 600.0,
) -> list[Any]:
    """`module:function` of a `Stage` and the settings, on one process per place; their results, in rank order.

    What rank 0 emits goes to `on_event` meanwhile. Whatever happens, no process is left when this returns or raises.
    """
    children: list[Child] = []
    heard: Heard = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="sparsewire-", ignore_cleanup_errors=True) as folder:
        order = json.dumps({"job": job, "settings": settings, "size": len(places), "store": f"{folder}/store"})
        try:
            for rank, place in enumerate(places):
                children.append(Child(rank, len(places), place, order, Path(folder), heard))
            return _listen(children, heard, on_event, limit)
        finally:
            for child in children:
                child.end()


Heard = queue.SimpleQueue[tuple[int, Event | None]]


class Child:
    """One rank's process. It says lines of JSON, and leaves when its standard input closes: with us, however we go."""

    def __init__(self, rank: int, size: int, place: Place, order: str, folder: Path, heard: Heard) -> None:
        self.rank, self._heard, self._errors = rank, heard, folder / f"stderr {rank}"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                [*place.prefix, sys.executable, "-m", f"{__package__}.rank", str(rank), order],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(size, place),
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):  # whatever is before its command may print as well
                self._heard.put((self.rank, json.loads(line)))
        self._heard.put((self.rank, None))

    def complaint(self) -> str:
        """The last line that it wrote to its standard error, or how it ended: a crash says nothing."""
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix(f"[rank{self.rank}]: ") if lines else f"exit status {self._process.wait()}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


def _environment(size: int, place: Place) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // size)
    path = os.pathsep.join(filter(None, sys.path))
    ours = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    return {**os.environ, **ours, **({"GLOO_SOCKET_IFNAME": place.interface} if place.interface else {})}


def _listen(children: list[Child], heard: Heard, on_event: Callable[[Event], None], limit: float) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + limit
    while len(results) < len(children):
        try:
            rank, event = heard.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise RankError(f"the ranks did not finish in {limit:g} s") from None
        if event is None and rank not in results:
            raise RankError(f"rank {rank} failed: {children[rank].complaint()}")
        if event is not None and "result" in event:
            results[rank] = event["result"]
        elif event is not None and rank == 0:
            on_event(event)
    return [results[rank] for rank in range(len(children))]
