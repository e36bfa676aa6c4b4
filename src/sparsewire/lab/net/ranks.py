"""The processes of ranks: started, watched, and always ended; what they print goes to whoever asked for it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple, cast

from .stopping import END_MARKED, MARK, Guard, dies_with_us, new_mark

LOOPBACK = "lo" if sys.platform == "linux" else None
PROXY = "SPARSEWIRE_LAB_PROXY"
TICK = 0.05  # seconds between looks at the processes
GRACE = 5.0  # seconds that a rank has after SIGTERM, and that reading what is left may take
CHUNK = 65_536  # bytes that a pipe holds
Take = Callable[[bytes], None]  # whoever takes what a rank writes; nothing is given once, at the end


@dataclass(frozen=True)
class Endpoint:
    """Where a rank runs: a prefix for its command (`ip netns exec …`), the network interface that it uses, its address
    there, and the proxy that a job's connections lead through."""

    prefix: tuple[str, ...] = ()
    interface: str | None = LOOPBACK
    address: str = "127.0.0.1"
    proxy: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        given = {"GLOO_SOCKET_IFNAME": self.interface, PROXY: self.proxy}
        return {name: value for name, value in given.items() if value}


def threads(ranks: int) -> int:
    """A rank's share of the cores."""
    return max(1, (os.cpu_count() or 1) // ranks)


class Rank(NamedTuple):
    """The command and environment of a rank, and the functions that take its standard output and its standard error."""

    words: Sequence[str]
    environment: Mapping[str, str]
    outputs: tuple[Take, Take]


class Ranks:
    """One process for each rank, in a session of its own. None is left when this is closed, or gone.

    `stdin` is what subprocess takes; a pipe closes when this process is gone. `grace`: seconds between SIGTERM and
    SIGKILL.
    """

    def __init__(self, ranks: Sequence[Rank], stdin: int = subprocess.DEVNULL, grace: float = GRACE) -> None:
        self._pipes, self._stdin, self._grace = selectors.DefaultSelector(), stdin, grace
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        mark = new_mark()
        self._guard = Guard(END_MARKED, mark)
        try:
            for number, rank in enumerate(ranks):
                self._start(number, rank, {**rank.environment, MARK: mark})
        except BaseException:
            self.close()
            raise

    def _start(self, number: int, rank: Rank, environment: dict[str, str]) -> None:
        pipe: Any = subprocess.PIPE
        process = subprocess.Popen(
            rank.words, bufsize=0, stdin=self._stdin, stdout=pipe, stderr=pipe, env=environment,
            start_new_session=True, preexec_fn=dies_with_us(),
        )  # fmt: skip
        self._processes[number] = process
        for file, take in zip((process.stdout, process.stderr), rank.outputs, strict=True):
            assert file is not None
            os.set_blocking(file.fileno(), False)
            self._pipes.register(file, selectors.EVENT_READ, (number, take))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return bool(self._processes)

    def ended(self, timeout: float = TICK) -> Iterator[tuple[int, int]]:
        """Passes on what they write, for so long if they write nothing; then those that have ended, and their exit
        status (negative: the signal that ended it). All that they wrote has been passed on."""
        self.pass_on(timeout)
        while (rank := self._next_ended()) is not None:
            yield rank, self._finish(rank)

    def _next_ended(self) -> int | None:
        return next((rank for rank, process in self._processes.items() if _ended(process)), None)

    def _finish(self, rank: int) -> int:
        process = self._processes.pop(rank)
        _signal(process, signal.SIGKILL)  # what it left in the background
        status = process.wait()
        for key in [*self._pipes.get_map().values()]:
            if key.data[0] == rank:
                self._read_all(key)
        _close(process.stdin)
        return status

    def pass_on(self, timeout: float) -> None:
        for key, _ in self._pipes.select(timeout):
            self._read(key)

    def _read_all(self, key: selectors.SelectorKey) -> None:
        """Reads what is there, and does not wait for more: a process that no signal has reached may hold the pipe."""
        with contextlib.suppress(BlockingIOError):
            while self._read(key):
                pass

    def _read(self, key: selectors.SelectorKey) -> bytes:
        data = os.read(key.fd, CHUNK)
        key.data[1](data)
        if not data:
            self._forget(key)
        return data

    def _forget(self, key: selectors.SelectorKey) -> None:
        self._pipes.unregister(key.fileobj)
        _close(cast(IO[bytes], key.fileobj))

    def end(self) -> None:
        """SIGTERM, and after the grace SIGKILL, for all that still run."""
        if self._grace:
            self._terminate()
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
            process.wait()
            _close(process.stdin)
        self._processes.clear()

    def _terminate(self) -> None:
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + self._grace
        while time.monotonic() < deadline and not all(map(_ended, self._processes.values())):
            self.pass_on(TICK)

    def drain(self, until: float) -> None:
        """Passes on what the ranks wrote before they ended; a process that has lost its mark may still hold a pipe."""
        self._guard.close()
        while self._pipes.get_map() and time.monotonic() < until:
            self.pass_on(TICK)
        self.pass_on(0)
        for key in [*self._pipes.get_map().values()]:
            self._forget(key)

    def close(self) -> None:
        if self._pipes.get_map() is None:  # closed before
            return
        until = time.monotonic() + GRACE
        self.end()
        self.drain(until)
        self._pipes.close()


def _close(file: IO[bytes] | None) -> None:
    if file is not None:
        file.close()


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping it, so that its number, which is its group's, is not used again before the group is ended."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # not ours to wait for, or no more
        return process.poll() is not None


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
