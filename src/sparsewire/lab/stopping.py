"""Ends that are asked for: a signal unwinds the program, so that what was opened is closed; children die with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
PR_SET_PDEATHSIG = 1


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
