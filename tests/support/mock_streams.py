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
    """A queue of work; a wait is work that brings another stream to a point."""

    def __init__(self, device: Any = None) -> None:
        self.queue: list[Callable[[], Any]] = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.queue[self.done - 1]()

    def wait_event(self, event: Event) -> None:
        stream, place = event.stream, event.place
        self.queue.append(lambda: stream.run(place))

    def wait_stream(self, other: Stream) -> None:
        place = len(other.queue)
        self.queue.append(lambda: other.run(place))


class Event:
    """A point in a stream."""

    def __init__(self) -> None:
        self.stream, self.place = Stream(), 0

    def record(self, stream: Stream) -> None:
        self.stream, self.place = stream, len(stream.queue)

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

    def launch(self, kernel: Callable[[], Any]) -> None:
        """Queues work where the caller works."""
        self.current.queue.append(kernel)

    def _copy(self, out: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        self.launch(lambda: out.copy_(tensor))
        return out
