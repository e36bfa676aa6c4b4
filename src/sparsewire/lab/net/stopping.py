"""Ends that are asked for: a signal unwinds the program, so that what was opened is closed; children die with it."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
PR_SET_PDEATHSIG = 1
MARK = "SPARSEWIRE_LAB"
# Ends all that has the mark, also in other sessions; looks twice, as a process that just calls exec shows no mark.
END_MARKED = f"""
none=0
for _ in $(seq 100); do
  pids=$(grep -lszxF "{MARK}=$1" /proc/[0-9]*/environ | cut -d/ -f3)
  if test -n "$pids"; then kill -9 $pids; none=0; else none=$((none + 1)); fi
  test $none = 2 && break
  sleep 0.02
done
"""
_serial = itertools.count()


@contextmanager
def stoppable() -> Iterator[None]:
    """Within it the first of these signals raises KeyboardInterrupt, or SystemExit with 128 + its number; the others
    that follow are ignored while everything is closed. One that is ignored already, as under nohup, stays so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    watched = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def stop(number: int, _: Any) -> None:
        for other in watched:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for number in watched:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in watched:
            signal.signal(number, before[number])


def dies_with_us() -> Callable[[], None] | None:
    """For `preexec_fn`: the kernel kills the child when this process is gone; None where there is no such thing."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def arm() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it went in between
            os._exit(1)

    return arm


class Guard:
    """A process of its own that runs a shell script as soon as this process is gone, however it ended, or closes it.

    It waits until nobody holds the other end of its standard input, in a session that no terminal's signals reach.
    """

    def __init__(self, script: str, *words: str) -> None:
        self._words = ["sh", "-c", f"while read -r _; do :; done\n{script}", "sh", *words]
        theirs, ours = os.pipe()
        self.held: int | None = ours  # a command that is given it, too, is waited for
        self._process: subprocess.Popen[bytes] | None = self._start(theirs)
        os.close(theirs)

    def _start(self, stdin: int) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        return subprocess.Popen(
            self._words, stdin=stdin, stdout=quiet, stderr=quiet, env=environment, start_new_session=True
        )

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits until the script has run; again if somebody killed the guard."""
        if self.held is not None:
            os.close(self.held)
            self.held = None
        if self._process is not None and self._process.wait() < 0:
            self._start(subprocess.DEVNULL).wait()
        self._process = None


def new_mark() -> str:
    """A value for the environment of all processes that one launch starts, and of no others."""
    return f"{os.getpid()}-{started(os.getpid())}-{next(_serial)}"


def started(pid: int) -> int | None:
    """When the process started, in the kernel's ticks, so that a number that is used again is not taken for it."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
