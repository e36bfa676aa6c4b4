"""The courier: one thread that owns the collectives of a model, first in, first out, while backward goes on.

DDP calls the hook in the same order on every rank, so every rank's courier issues the same collectives in the same
order; a collective from a future's callback, or from two threads, would not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

Task = TypeVar("Task")


@dataclass
class Parcel(Generic[Task]):
    """A task and the promise of its result."""

    task: Task
    promise: torch.futures.Future[object]


def promise() -> tuple[torch.futures.Future[object], torch.futures.Future[torch.Tensor]]:
    """(what the courier fulfils, what DDP waits for).

    DDP does not understand Python's exceptions in a future (`set_exception`), only those that a callback raises.
    """

    def unwrap(done: torch.futures.Future[object]) -> torch.Tensor:
        result = done.value()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, torch.Tensor)
        return result

    inner: torch.futures.Future[object] = torch.futures.Future()
    return inner, inner.then(unwrap)


class Courier(Generic[Task]):
    """Runs `work(parcel)` for each parcel, in order. After a failure every parcel fails with the same error."""

    def __init__(self, work: Callable[[Parcel[Task]], None], name: str) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._pending: list[Parcel[Task]] = []
        self._queue: queue.SimpleQueue[Parcel[Task] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, task: Task) -> torch.futures.Future[torch.Tensor]:
        inner, outer = promise()
        self._queue.put(Parcel(task, inner))
        return outer

    def stop(self, timeout: float | None = None) -> None:
        """Finishes what is queued, then ends the thread."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (parcel := self._queue.get()) is not None:
            self._pending.append(parcel)
            try:
                if self.error is None:
                    self._work(parcel)
            except BaseException as error:
                self.error = error
            if self.error is not None:
                self._fail()
            self._pending = [waiting for waiting in self._pending if not waiting.promise.done()]

    def _fail(self) -> None:
        for parcel in self._pending:
            if not parcel.promise.done():
                parcel.promise.set_result(self.error)
