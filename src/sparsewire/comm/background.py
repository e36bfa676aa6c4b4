"""Threads of our own: calls that may take too long, and threads that end before the interpreter does.

An interpreter that ends (before Python 3.14) unwinds every thread that asks for its lock. If such a thread is within
C++ code that may not be unwound, as torch's is, the process aborts: "terminate called without an active exception".
So every thread that calls torch is started here, and is told to end, and waited for, when the interpreter ends. The
engine's own threads are nobody's to end; `at_end` waits for what they still hold.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sparsewire.errors import CommTimeout

Result = TypeVar("Result")
AT_EXIT = 2.0  # seconds that all threads together are given to end with the interpreter
_last: list[Callable[[], None]] = []  # what is called when they have ended
_running: dict[threading.Thread, Callable[[], None]] = {}  # and what tells each of them to end


def start(work: Callable[[], None], name: str, end: Callable[[], None] = lambda: None) -> threading.Thread:
    """A thread that has begun; `end` tells it, from another thread, that the interpreter is about to end."""

    def run() -> None:
        try:
            work()
        finally:
            _running.pop(threading.current_thread(), None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    _running[thread] = end
    thread.start()
    return thread


def within(seconds: float, call: Callable[[], Result], name: str) -> Result:
    """What the call gives or raises; after so many seconds a `CommTimeout`, and the call is left to its thread."""
    results: list[Result] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            failed.append(error)

    start(work, name).join(seconds)
    if failed:
        raise failed.pop()
    if not results:
        raise CommTimeout(f"{name}: no answer within {seconds:g} s")
    return results[0]


def at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Has the call made when the interpreter ends, after the threads of ours have ended."""
    _last.append(call)
    return call


@atexit.register
def _end_all() -> None:
    deadline, threads = time.monotonic() + AT_EXIT, list(_running.items())
    for thread, end in threads:
        with suppress(Exception):
            if thread.is_alive():
                end()
    for thread, _ in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for call in _last:
        with suppress(Exception):
            call()
