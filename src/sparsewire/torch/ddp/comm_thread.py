"""The communication thread runs the collectives of a model, first in, first out, while backward goes on.

DDP calls the hook in the same order on every rank, so every rank's communication thread issues the same collectives in
the same order. Collectives from a future's callback, or from two threads, would have no such order.

DDP makes a RuntimeError of whatever a future fails with. So futures never fail: after an error they give the gradient
as it was, and the error itself is raised from a callback at the end of backward, where autograd leaves it as it is.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from sparsewire.comm import background
from sparsewire.errors import CommError

from .bucket import Bucket
from .streams import Streams, future_on, mark


@dataclass
class QueuedBucket:
    """A bucket, the promise of its mean, and the tensor that DDP gets if there will be no mean."""

    bucket: Bucket
    promise: torch.futures.Future[torch.Tensor]
    fallback: torch.Tensor
    ready: Any
    error: BaseException | None = None  # what went wrong already, elsewhere


class CommThread:
    """Runs `work` for each queued bucket, in order. After a failure it does no more work; backward raises the error.

    `failed(error)` is called once, on the communication thread, and returns the error that backward will raise.
    """

    def __init__(
        self, work: Callable[[QueuedBucket], None], failed: Callable[[BaseException], BaseException], name: str
    ) -> None:
        self.error: BaseException | None = None
        self._work, self._failed = work, failed
        self._pending: list[QueuedBucket] = []
        self._queue: queue.SimpleQueue[QueuedBucket | Callable[[], None]] = queue.SimpleQueue()
        self._streams = Streams()
        self._end_error: BaseException | None = None
        self._unheard = False
        self._thread = background.start(self._run, name, self._end_with_interpreter)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the communication thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def send(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        """Queues the bucket; DDP waits for the future, which gives the bucket's own buffer after an error."""
        return self.watched(self.put(bucket), bucket.is_last)

    def put(self, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        """The same for a caller that waits for the future itself, and then raises `error`."""
        buffer = bucket.buffer
        promise = future_on(buffer.device)
        self._queue.put(QueuedBucket(bucket, promise, buffer, mark(buffer.device)))
        return promise

    def fail(self, error: BaseException, promise: torch.futures.Future[torch.Tensor], fallback: torch.Tensor) -> None:
        """Takes note that a promise made outside of this thread has failed, as if the thread's own work had."""
        nothing: Any = None
        self._queue.put(QueuedBucket(nothing, promise, fallback, mark(fallback.device), error))

    def watched(self, promise: torch.futures.Future[torch.Tensor], is_last: bool) -> torch.futures.Future[torch.Tensor]:
        """A promise to DDP; backward raises at its end what has gone wrong by then."""
        if torch._C._current_graph_task_id() < 0:  # DDP's join() calls hooks outside of backward
            return promise.then(self._result)
        if is_last:
            at_the_end_of_backward(self._raise)
        return promise

    def stop(
        self, close: Callable[[], None], error: BaseException | None = None, patience: float | None = None
    ) -> None:
        """Ends the thread, which calls `close` last, after what is queued or, with an error, as soon as it can.

        Called on the communication thread itself it returns at once; the thread ends after its current bucket.
        """
        self.error = self.error or error
        self._unheard = self.is_here
        self._queue.put(close)
        if self._unheard:
            return
        self._thread.join(patience)
        if not self._thread.is_alive():
            self.error = None
        if self._end_error is not None:
            raise self._end_error

    def _end_with_interpreter(self) -> None:
        """Nobody waits for what is queued any more."""
        self.error = self.error or CommError("the process ends, and its link was not detached")
        self._queue.put(lambda: None)

    def _run(self) -> None:
        while isinstance(item := self._queue.get(), QueuedBucket):
            self._pending.append(item)
            if self.error is None:
                self._try(item)
            if self.error is not None:
                self._give_up()
            self._pending = [waiting for waiting in self._pending if not waiting.promise.done()]
        try:
            item()
        except BaseException as error:
            self._end_error = error
            if self._unheard:
                raise
        finally:
            # Their owner refers to this object: a cycle that would keep its memory until the next collection.
            del self._work, self._failed

    def _try(self, queued: QueuedBucket) -> None:
        try:
            with self._streams.behind(queued.ready, queued.fallback.device):
                if queued.error is not None:
                    raise queued.error
                self._work(queued)
        except BaseException as error:
            self.error = error
            with suppress(Exception):  # this error is the one to raise, whatever telling the others comes to
                self.error = self._failed(error)

    def _give_up(self) -> None:
        for queued in self._pending:
            if not queued.promise.done():
                queued.promise.set_result(queued.fallback)

    def _result(self, done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        self._raise()
        return done.value()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error


def at_the_end_of_backward(call: Callable[[], None]) -> None:
    """Behind the engine's own callback: DDP's is queued later than this, waits for the futures and tidies up; FSDP's
    reduces what backward has not come by."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))
