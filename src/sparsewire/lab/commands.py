"""Any command as the ranks of a job: one process for each, with what launchers set in its environment."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from .launch import Place, threads
from .stopping import dies_with_us

TICK = 0.05  # seconds between looks at the processes
GRACE = 5.0  # seconds that a rank has after SIGTERM


def rank_environment(rank: int, places: Sequence[Place], per_node: int, port: int) -> dict[str, str]:
    """What torchrun would set: the rank and the number of ranks, of all and on its node, and where rank 0 is."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": len(places),
        "LOCAL_RANK": rank % per_node,
        "LOCAL_WORLD_SIZE": per_node,
        "GROUP_RANK": rank // per_node,
        "MASTER_PORT": port,
    }
    words = {name: str(number) for name, number in numbers.items()}
    ours = {**words, "MASTER_ADDR": places[0].address, **places[rank].environment}
    return {"OMP_NUM_THREADS": str(threads(len(places))), **os.environ, **ours}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Commands:
    """The ranks' processes, each in a session of its own; their output is passed on line by line, behind the rank.

    When one fails the others are ended, because they would wait for it. None is left when this is closed.
    """

    def __init__(self, command: Sequence[str], places: Sequence[Place], per_node: int = 1) -> None:
        self._lines: queue.SimpleQueue[tuple[IO[str], bytes]] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.status = 0
        port = free_port()
        try:
            for rank, place in enumerate(places):
                environment = rank_environment(rank, places, per_node, port)
                self._start(rank, [*place.prefix, *command], environment)
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, words: Sequence[str], environment: dict[str, str]) -> None:
        pipe: Any = subprocess.PIPE
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, start_new_session=True,
            preexec_fn=dies_with_us(),
        )  # fmt: skip
        self._processes[rank] = process
        for theirs, ours in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
            self._readers.append(threading.Thread(target=self._read, args=(rank, theirs, ours), daemon=True))
            self._readers[-1].start()

    def _read(self, rank: int, theirs: IO[bytes], ours: IO[str]) -> None:
        with theirs:
            for line in theirs:
                self._lines.put((ours, b"[%d] %s\n" % (rank, line.rstrip(b"\r\n"))))

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, on_tick: Callable[[], None] = lambda: None) -> int:
        """Waits for all; the exit status of the rank that failed first, 128 + the signal if one ended it, or 0."""
        while self._processes:
            self._write(timeout=TICK)
            on_tick()
            for rank in [rank for rank, process in self._processes.items() if _ended(process)]:
                self._finish(rank)
        self._drain()
        return self.status

    def _finish(self, rank: int) -> None:
        process = self._processes.pop(rank)
        _signal(process, signal.SIGKILL)  # what it left in the background
        status = process.wait()
        if status and not self.status:
            self.status = status if status > 0 else 128 - status
            others = "; the others are ended" if self._processes else ""
            print(f"sparsewire lab: rank {rank} ended with status {self.status}{others}", file=sys.stderr)
            self._end()

    def _end(self) -> None:
        """SIGTERM, and after a while SIGKILL, for all that still run."""
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline and not all(map(_ended, self._processes.values())):
            time.sleep(TICK)
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        self._end()

    def _drain(self) -> None:
        """What they wrote before they ended."""
        for reader in self._readers:
            reader.join(GRACE)
        while not self._lines.empty():
            self._write(timeout=0)

    def _write(self, timeout: float) -> None:
        try:
            stream, line = self._lines.get(timeout=timeout)
        except queue.Empty:
            return
        stream.write(line.decode(errors="replace"))
        stream.flush()


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping it, so that its number, which is its group's, is not used again before the group is ended."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
