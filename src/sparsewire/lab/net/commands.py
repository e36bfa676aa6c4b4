"""Any command as the ranks of a job: one process for each, with what launchers set in its environment."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, TextIO, cast

from .launch import Place, threads
from .stopping import END_MARKED, MARK, Guard, dies_with_us, new_mark

TICK = 0.05  # seconds between looks at the processes
GRACE = 5.0  # seconds that a rank has after SIGTERM
CHUNK = 65_536  # bytes that a pipe holds
LONGEST = 65_536  # characters of a line; longer ones are passed on in pieces
LINE_END = re.compile(r"\r*\n\r*|\r+")  # the latter is that of progress bars


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
    defaults = {"OMP_NUM_THREADS": str(threads(len(places))), "PYTHONUNBUFFERED": "1"}
    return {**defaults, **os.environ, **ours}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Commands:
    """The ranks' processes, each in a session of its own; their output is passed on line by line, behind the rank, and
    they wait where it cannot be written as fast.

    When one fails the others are ended, because they would wait for it. None is left when this is closed, or gone.
    """

    def __init__(self, command: Sequence[str], places: Sequence[Place], per_node: int = 1) -> None:
        self._pipes = selectors.DefaultSelector()
        self._sinks = [Sink(sys.stdout), Sink(sys.stderr)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._until: float | None = None  # when what is not written yet is given up
        self.status = 0
        port, mark = free_port(), new_mark()
        self._guard = Guard(END_MARKED, mark)
        try:
            for rank, place in enumerate(places):
                environment = rank_environment(rank, places, per_node, port)
                self._start(rank, [*place.prefix, *command], {**environment, MARK: mark})
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, words: Sequence[str], environment: dict[str, str]) -> None:
        pipe: Any = subprocess.PIPE
        process = subprocess.Popen(
            words, bufsize=0, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment,
            start_new_session=True, preexec_fn=dies_with_us(),
        )  # fmt: skip
        self._processes[rank] = process
        for theirs, ours in zip((process.stdout, process.stderr), self._sinks, strict=True):
            assert theirs is not None
            self._pipes.register(theirs, selectors.EVENT_READ, RankOutput(rank, ours))

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, on_tick: Callable[[], None] = lambda: None) -> int:
        """Waits for all; the exit status of the rank that failed first, 128 + the signal if one ended it, or 0."""
        while self._processes:
            self._pass_on(TICK)
            on_tick()
            while (ended := self._next_ended()) is not None:
                self._finish(ended)
        self._drain()
        return self.status

    def _next_ended(self) -> int | None:
        return next((rank for rank, process in self._processes.items() if _ended(process)), None)

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
            self._pass_on(TICK)
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        if self._pipes.get_map() is None:  # closed before
            return
        self._until = time.monotonic() + GRACE
        self._end()
        self._drain()
        self._pipes.close()

    # --- what they print ---

    def _drain(self) -> None:
        """What they wrote before they ended; a process that no mark has found may still hold a pipe."""
        self._guard.close()
        deadline = self._until or time.monotonic() + GRACE
        while self._pipes.get_map() and time.monotonic() < deadline:
            self._pass_on(TICK)
        self._pass_on(0)
        for key in [*self._pipes.get_map().values()]:
            self._close(key)

    def _pass_on(self, timeout: float) -> None:
        for key, _ in self._pipes.select(timeout):
            data = os.read(key.fd, CHUNK)
            key.data.take(data)
            if not data:
                self._close(key)
        for sink in self._sinks:
            sink.write(self._until)

    def _close(self, key: selectors.SelectorKey) -> None:
        self._pipes.unregister(key.fileobj)
        cast(IO[bytes], key.fileobj).close()


class Sink:
    """One of our outputs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._fd, self._left = stream, _descriptor(stream), bytearray()

    def add(self, text: str) -> None:
        if self._fd is None:
            self._stream.write(text)
        else:
            self._left += text.encode(self._stream.encoding or "utf-8", "replace")

    def write(self, until: float | None) -> None:
        """Waits while it cannot be written; if there is an end to that, gives up what is left then."""
        try:
            while self._left and self._fd is not None and _writable(self._fd, until):
                del self._left[: os.write(self._fd, self._left[: select.PIPE_BUF])]
        except OSError:
            if until is None:
                raise
            self._left.clear()


class RankOutput:
    """One output of a rank, cut into lines."""

    def __init__(self, rank: int, sink: Sink) -> None:
        self._rank, self._sink = rank, sink
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest, self._returned = "", False

    def take(self, data: bytes) -> None:
        """Passes on the lines that are whole; all, if no data are left."""
        new = self._decoder.decode(data, final=not data)
        text = self._rest + (new.lstrip("\r") if not self._rest else new)
        *lines, self._rest = LINE_END.split(text.removeprefix("\n") if self._returned else text)
        self._returned = new.endswith("\r")
        if self._rest and (len(self._rest) >= LONGEST or not data):
            lines.append(self._rest)
            self._rest = ""
        self._sink.add("".join(f"[{self._rank}] {line}\n" for line in lines))


def _descriptor(stream: TextIO) -> int | None:
    """None for what is no file, such as a notebook's output."""
    try:
        stream.flush()
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


def _writable(fd: int, until: float | None) -> bool:
    return bool(select.select([], [fd], [], None if until is None else max(0.0, until - time.monotonic()))[1])


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping it, so that its number, which is its group's, is not used again before the group is ended."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
