"""`Profile`: what a step's time was spent on, on one rank, measured without a message to the others.

A step ends when its means are handed over. From one end to the next:

    compute   until the last gradient is there: forward, backward, the optimizer, and whatever the user does
    work      after that: what this rank still selects, encodes, decodes, keeps and adds up
    wire      after that: in a collective, as long as the same collective has taken at the least of late, which is
              when this rank came last
    wait      after that: the rest of the time in collectives, which is waiting for other ranks

They add up to the step. What the communication thread did before the last gradient came is `hidden`: it costs a step
time only where threads want the same cores. `queued` says how long each thread was ready and had none (on Linux).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

from sparsewire.comm import Communicator
from sparsewire.exchange import Clock

from .trace import Trace

logger = logging.getLogger("sparsewire")
PARTS = ("compute", "work", "wait", "wire")
HIDDEN = ("work", "wait", "wire")
LATE = 32  # calls of a collective that say how long it takes


class Span(NamedTuple):
    name: str
    start: float
    end: float
    wire: float = 0.0  # of a collective: how long it takes by itself
    nbytes: int = 0

    def after(self, moment: float) -> float:
        return max(0.0, self.end - max(self.start, moment))


class Profile:
    """Totals since it was made; `trace` also records the coming steps."""

    def __init__(self, comm: Communicator, clock: Clock) -> None:
        self._comm, self._clock = comm, clock
        self.history: list[list[float]] | None = None  # if a list is put here: of each step, its collectives' seconds
        self._ended: float | None = None
        self._came = 0.0
        self._calls: list[Span] = []
        self._tasks: list[Span] = []
        self._least: dict[tuple[int, str, int], deque[float]] = {}
        self._trace: Trace | None = None
        self._queues = {"compute": Queue(), "communication": Queue()}
        self.clear()
        comm.watch(self._called)

    def clear(self) -> None:
        self.steps, self._spent = 0, dict.fromkeys(PARTS, 0.0)
        self._hidden = dict.fromkeys(HIDDEN, 0.0)
        self._queued = dict.fromkeys(self._queues, 0.0)

    def stats(self) -> dict[str, Any]:
        """Seconds in all: the parts, which add up to `step`, and what was hidden behind compute."""
        queued = dict(self._queued) if Queue.known else {}
        parts = dict(self._spent)
        return {"steps": self.steps, "step": sum(parts.values()), **parts, "hidden": dict(self._hidden),
                "queued": queued}  # fmt: skip

    def trace(self, trace: Trace) -> None:
        """Records steps from the next end of a step on, until the trace has as many as it wants."""
        self.end_trace()
        trace.begin(self._comm.rank)
        self._trace = trace

    def end_trace(self) -> None:
        """Writes what has been recorded of a trace that is not full."""
        trace, self._trace, self._clock.watch = self._trace, None, None
        try:
            if trace is not None:
                trace.write()
        except OSError as error:
            logger.warning("the trace is not written: %s", error)

    # --- what the host tells ---

    def gradient_came(self, label: str, is_last: bool) -> None:
        """On the thread that computes: a part of the gradient is there."""
        now = time.perf_counter()
        if self._trace is not None and self._clock.watch is not None:
            self._trace.instant(label, now)
        if is_last:
            self._came = now
            self._queued["compute"] += self._queues["compute"].more()

    def task(self, label: str, start: float) -> None:
        """On the communication thread: a part of the gradient has been dealt with, from `start` until now."""
        self._tasks.append(Span(label, start, time.perf_counter()))

    def end_step(self) -> None:
        """On the communication thread: the step's means are about to be handed over."""
        now, before = time.perf_counter(), self._ended
        self._queued["communication"] += self._queues["communication"].more()
        if before is not None and before <= self._came:
            self._count(before, self._came, now)
            self._record(before, now)
            if self.history is not None:
                self.history.append([call.end - call.start for call in self._calls])
        calls, self._calls, self._tasks, self._ended = self._calls, [], [], now
        self._learn(calls)
        if self._trace is not None:
            self._follow_trace(self._trace)

    def forget(self) -> None:
        """The step under way is another's, or was given up: it is not counted."""
        self._ended = None
        self._calls, self._tasks = [], []
        for queue in self._queues.values():
            queue.forget()

    # --- what is made of it ---

    def _called(self, name: str, nbytes: int, start: float, end: float) -> None:
        known = self._least.get((len(self._calls), name, nbytes.bit_length()), ())
        self._calls.append(Span(name, start, end, min((*known, end - start)), nbytes))

    def _learn(self, calls: list[Span]) -> None:
        for place, call in enumerate(calls):
            key = place, call.name, call.nbytes.bit_length()
            self._least.setdefault(key, deque(maxlen=LATE)).append(call.end - call.start)

    def _count(self, before: float, came: float, now: float) -> None:
        """Within a collective the waiting comes first."""
        self.steps += 1
        open_ended = Span("", max(came, before), now)
        tail = _parts([open_ended], self._calls, came)
        whole = _parts([*self._tasks, *([open_ended] if not self._covers(came) else [])], self._calls, before)
        self._spent["compute"] += came - before
        for name in HIDDEN:
            self._spent[name] += tail[name]
            self._hidden[name] += max(0.0, whole[name] - tail[name])

    def _covers(self, came: float) -> bool:
        return any(task.end > came for task in self._tasks)

    def _record(self, before: float, now: float) -> None:
        trace = self._trace
        if trace is None or self._clock.watch is None:
            return
        trace.span("compute", "compute", before, self._came)
        trace.span("compute", "wait for the means", self._came, now)
        for task in self._tasks:
            trace.span("communication", task.name, task.start, task.end)
        for call in self._calls:
            facts = {"bytes": call.nbytes, "wire_ms": 1e3 * call.wire}
            trace.span("communication", call.name, call.start, call.end, facts)
        trace.end_step(self.steps)

    def _follow_trace(self, trace: Trace) -> None:
        if trace.is_full:
            self.end_trace()
        else:
            self._clock.watch = trace.stage


def _parts(tasks: list[Span], calls: list[Span], moment: float) -> dict[str, float]:
    """Work, wait and wire after a moment."""
    busy = sum(task.after(moment) for task in tasks)
    within = sum(call.after(moment) for call in calls)
    wire = sum(min(call.wire, call.after(moment)) for call in calls)
    return {"work": max(0.0, busy - within), "wait": within - wire, "wire": wire}


class Queue:
    """How long the thread that asks was ready and had no core, since it asked last: /proc/thread-self/schedstat."""

    known = sys.platform == "linux" and os.path.exists("/proc/thread-self/schedstat")

    def __init__(self) -> None:
        self._thread, self._before = 0, 0

    def forget(self) -> None:
        """What comes until it is asked again is not counted."""
        self._thread = 0

    def more(self) -> float:
        thread, now = threading.get_ident(), _nanoseconds_queued()
        same, before = thread == self._thread, self._before
        self._thread, self._before = thread, now
        return 1e-9 * (now - before) if same else 0.0


def _nanoseconds_queued() -> int:
    with suppress(OSError, ValueError, IndexError):
        if Queue.known:
            handle = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
            try:
                return int(os.read(handle, 128).split()[1])
            finally:
                os.close(handle)
    return 0
