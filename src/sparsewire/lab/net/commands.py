"""Any command as the ranks of a job: with what launchers set in its environment, its lines behind the rank's number."""

from __future__ import annotations

import codecs
import io
import os
import re
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from .ranks import GRACE, TICK, Endpoint, Rank, Ranks, threads

LONGEST = 65_536  # characters of a line; longer ones are passed on in pieces
LINE_END = re.compile(r"\r*\n\r*|\r+")  # the latter is that of progress bars


def rank_environment(rank: int, endpoints: Sequence[Endpoint], per_node: int, port: int) -> dict[str, str]:
    """The environment that torchrun would set: rank and world size, globally and on the node, and rank 0's address."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": len(endpoints),
        "LOCAL_RANK": rank % per_node,
        "LOCAL_WORLD_SIZE": per_node,
        "GROUP_RANK": rank // per_node,
        "MASTER_PORT": port,
    }
    words = {name: str(number) for name, number in numbers.items()}
    ours = {**words, "MASTER_ADDR": endpoints[0].address, **endpoints[rank].environment}
    defaults = {"OMP_NUM_THREADS": str(threads(len(endpoints))), "PYTHONUNBUFFERED": "1"}
    return {**defaults, **os.environ, **ours}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Commands(Ranks):
    """Ranks whose output is passed on line by line, behind the rank's number; they wait where it cannot be written as
    fast. When one fails the others are ended, because they would wait for it."""

    def __init__(self, command: Sequence[str], endpoints: Sequence[Endpoint], per_node: int = 1) -> None:
        self._sinks = out, err = Sink(sys.stdout), Sink(sys.stderr)
        self._until: float | None = None  # when what is not written yet is given up
        self.status = 0
        port = free_port()
        super().__init__([
            Rank([*endpoint.prefix, *command], rank_environment(rank, endpoints, per_node, port),
                 (RankOutput(rank, out).take, RankOutput(rank, err).take))
            for rank, endpoint in enumerate(endpoints)
        ])  # fmt: skip

    def run(self, on_tick: Callable[[], None] = lambda: None) -> int:
        """Waits for all; the exit status of the rank that failed first, 128 + the signal if one ended it, or 0."""
        while self.running:
            for rank, status in self.ended(TICK):
                if status and not self.status:
                    self._fail(rank, status)
            on_tick()
        self.drain(time.monotonic() + GRACE)
        return self.status

    def _fail(self, rank: int, status: int) -> None:
        self.status = status if status > 0 else 128 - status
        others = "; the others are ended" if self.running else ""
        print(f"sparsewire lab: rank {rank} ended with status {self.status}{others}", file=sys.stderr)
        self.end()

    def pass_on(self, timeout: float) -> None:
        super().pass_on(timeout)
        for sink in self._sinks:
            sink.write(self._until)

    def close(self) -> None:
        self._until = self._until or time.monotonic() + GRACE
        super().close()


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
