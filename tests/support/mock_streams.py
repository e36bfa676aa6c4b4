"""An accelerator that queues its work, made of CPU tensors: streams and events that order nothing by themselves.

What is queued on a stream runs only when somebody waits for an event behind it, and then no more than what that event
depends on: the laziest order that the program allows. So whoever forgets to wait sees numbers that are not there yet.
It cannot show what memory is reused too early, how fast copies are, or what a real driver gets wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from sparsewire.kernels.device import crossing


class Stream:
    """A queue of work; a wait is work that brings another stream to a point. `time` is when what has run ended."""

    def __init__(self, device: Any = None) -> None:
        self.queue: list[Callable[[], Any]] = []
        self.done, self.time = 0, 0.0
        self.times = [0.0]  # behind each piece of work

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.queue[self.done - 1]()
            self.times.append(self.time)

    def wait_event(self, event: Event) -> None:
        stream, place = event.stream, event.place
        self.queue.append(lambda: self._follow(stream, place))

    def wait_stream(self, other: Stream) -> None:
        place = len(other.queue)
        self.queue.append(lambda: self._follow(other, place))

    def _follow(self, other: Stream, place: int) -> None:
        other.run(place)
        self.time = max(self.time, other.times[place])

    def pass_time(self, seconds: float) -> None:
        self.time += seconds


class Event:
    """A point in a stream, and when it was reached."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.stream, self.place, self.time = Stream(), 0, 0.0
        self._is_timed = enable_timing

    def record(self, stream: Stream) -> None:
        stream.queue.append(self._reach)
        self.stream, self.place = stream, len(stream.queue)

    def _reach(self) -> None:
        self.time = self.stream.time

    def elapsed_time(self, later: Event) -> float:
        """In milliseconds, of events that have been reached."""
        assert self._is_timed and later._is_timed, "events without enable_timing have no time"
        assert all(event.stream.done >= event.place for event in (self, later)), "an event has not been reached"
        return 1e3 * (later.time - self.time)

    def synchronize(self) -> None:
        self.stream.run(self.place)


class Engine:
    """What `torch.get_device_module` gives."""

    Stream, Event = Stream, Event

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = self.first = Stream()
        monkeypatch.setattr(torch, "get_device_module", lambda device=None: self)
        monkeypatch.setattr(crossing, "PINNED", ("cpu",))
        monkeypatch.setattr(crossing, "_pinned", torch.zeros_like)
        monkeypatch.setattr(crossing, "_copy", self._copy)
        monkeypatch.setattr(crossing, "_here", crossing._Thread())

    def current_stream(self, device: Any = None) -> Stream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def launch(self, kernel: Callable[[], Any], seconds: float = 0.0) -> None:
        """Queues work of so many seconds where the caller works."""
        stream = self.current
        stream.queue += [kernel, lambda: stream.pass_time(seconds)]

    def _copy(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        self.launch(lambda: out.copy_(tensor))
        return out
