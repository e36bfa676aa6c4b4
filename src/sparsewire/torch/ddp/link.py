"""`Link` connects a model to the other ranks: DDP's hook and the communication thread on top of an `Averager`.

DDP hands over a bucket; on the communication thread the averager exchanges it. After the last bucket of a step the
averager finishes the step, the means are in the buckets, and DDP goes on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from sparsewire.codecs.transform import Fourier, computed_by
from sparsewire.comm import Communicator
from sparsewire.core.files import PathLike
from sparsewire.core.host import to_host
from sparsewire.core.sparse import Sparse
from sparsewire.core.statefile import reading
from sparsewire.errors import add_note
from sparsewire.kernels.scratch import BufferPool
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer
from sparsewire.training.link_parts import AveragerLink
from sparsewire.training.profile import Profile
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings
from sparsewire.training.settings import real_sizes
from sparsewire.training.trace import STEPS, Trace

from ..group import GRACE, CommGroup
from ..optimizers import Fit
from ..tensors import to_arrays, to_tensors
from . import bundle
from .bucket import Bucket, to_coo
from .bundle import Bundle, most_entries
from .clipping import ClipWatch
from .comm_thread import CommThread, QueuedBucket
from .device_path import DevicePath
from .hook import HookState
from .node_engine import open_engines

logger = logging.getLogger("sparsewire")


class Link(AveragerLink):
    """Made by `attach`; `stats()`, `state_dict()`, `detach()`; as a context manager it detaches at the end."""

    def __init__(
        self, names: dict[torch.Tensor, str], group: CommGroup, settings: Settings, hook: HookState,
        fit: Fit | None = None, fourier: Fourier | None = None, recipe: Recipe | None = None,
    ) -> None:  # fmt: skip
        self.comm: Communicator = group.comm
        self.recipe = recipe
        self._names, self._group, self._hook, self._fit = names, group, hook, fit
        self.averager = self._make_averager(settings)
        self.profile = Profile(group.comm, self.averager.clock)
        self._staging, self._fourier, self._device_path = BufferPool(), fourier, DevicePath()
        self._step: list[QueuedBucket] = []
        self._bundle = Bundle()
        self._comm_thread = CommThread(self._work, self._fail, "sparsewire-comm")
        hook.link = self
        self._watch = ClipWatch(names, settings)
        if fit is not None:
            averager = self.averager  # not the link: the optimizer outlives it
            fit.attach(lambda: averager.was_sparse, self._watch.changed)

    def _make_averager(self, settings: Settings) -> Averager:
        named = {name: parameter for parameter, name in self._names.items()}
        averager = Averager(self._group.comm, settings, real_sizes(named))
        open_engines(self._group, averager.nodes, self._hook.group, self._names)
        return averager

    # --- what users call ---

    @property
    def attached(self) -> bool:  # type: ignore[override]
        return self._hook.link is self

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """torch's group of all ranks of this link."""
        return self._hook.group

    def stats(self) -> dict[str, Any]:
        """Totals since `attach`: steps, bytes handed to and got from the engine, what dense steps would have sent,
        and seconds by stage on the communication thread; with `nodes`, the bytes between machines. "recipe" is the
        call that says everything that was chosen, "profile" where the steps' time went."""
        return {**super().stats(), "profile": self.profile.stats()}

    def trace(self, path: PathLike, steps: int = STEPS) -> None:
        """Writes the coming steps of this rank as a time line: open the file at ui.perfetto.dev or chrome://tracing.

        It shows buckets, the stages of each and every collective. One rank or all may call it, each with a path of its
        own; the file is complete after so many steps, or at `detach`.
        """
        self.profile.trace(Trace(path, steps))

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain types only. Every rank saves its own."""
        return to_tensors(self.averager.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from this rank's saved state, whatever other ranks do. `sparsewire.torch.load` asks them, and
        reshards states to another number of ranks."""
        self.take_over(self.read_state(state))

    def read_state(self, state: Mapping[str, Any]) -> Any:
        """This rank's saved state, checked, as `take_over` needs it; the link stays as it is."""
        with reading():
            arrays = to_arrays(state)
        return self.averager.read_state(arrays)

    def take_over(self, ready: Any) -> None:
        """Goes on from what `read_state` gave."""
        self.averager.take_over(ready)

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be spoken to."""
        return self.attached and self._comm_thread.error is None

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes. Between steps, when nothing else is on its way; whoever fails tells the others."""
        try:
            return [bytes(part) for part in self.comm.all_gather(data, "state")]
        except BaseException as error:
            failed = self._comm_thread.error = self._fail(error)
            raise failed from None if failed is error else error

    def ignore_changes(self) -> None:
        """Gives no warning of gradients that change after backward: for a host that is known not to clip them."""
        self._watch.stop()

    def detach(self, error: BaseException | None = None) -> None:
        """Ends the communication thread; from now on the model's gradients are averaged dense, as without a link.

        Every rank calls it, and waits for the others. With the error that ended its training a rank leaves at once, and
        the others hear of that error; `with` does so by itself. Called in `on_step` it ends after this step.
        """
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._hook.link is not self:
            return
        self._hook.link = None
        if self._fit is not None:
            self._fit.detach()
        self._log_unsent()
        error = error or self._comm_thread.error
        try:
            if error is None:
                self._comm_thread.stop(self._group.close)
            else:
                self._group.tell(error)
                self._comm_thread.stop(self._group.leave, error, GRACE)
        finally:
            self.profile.end_trace()

    def _log_unsent(self) -> None:
        unsent = self.averager.states.unsent()
        if unsent:
            logger.info(
                "detached with gradients of %d parameters not sent yet (%s, …); link.state_dict() still has them, "
                "for load_state_dict of the next link",
                len(unsent),
                unsent[0],
            )

    def _fail(self, error: BaseException) -> BaseException:
        """Tells the other ranks of an error; the communication thread calls it when its work fails."""
        failed = self._group.fail(error)
        peers = self.grid.peers(self.comm.rank)
        where = "" if len(peers) == self.comm.size else f"; in an exchange, a rank is its place in {peers}"
        add_note(failed, f"sparsewire: on rank {self.comm.rank}, at step {self.step}{where}")
        return failed

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def handle(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Queues a bucket; the hook calls it on autograd's thread."""
        task = Bucket.of(bucket, self._names)
        if task.is_last:
            self._watch.begin()
        self.profile.gradient_came(task.label, task.is_last)
        return self._comm_thread.send(task)

    # --- what the communication thread does ---

    def _work(self, queued: QueuedBucket) -> None:
        try:
            with computed_by(self._fourier):
                self._put(queued)
        except BaseException:
            self._step = []
            self._bundle.rest()
            self.averager.abandon()
            self.profile.forget()
            raise

    def _put(self, queued: QueuedBucket) -> None:
        bucket, start = queued.bucket, time.perf_counter()
        self._step.append(queued)
        with record_function(f"sparsewire: {bucket.label}"):
            self._put_into_averager(bucket)
        self.profile.task(bucket.label, start)
        if bucket.is_last:
            self._finish()

    def _put_into_averager(self, bucket: Bucket) -> None:
        if bucket.is_sparse:
            x = to_host(bucket.buffer)
            assert isinstance(x, Sparse)
            self.averager.put_sparse(bucket.slices[0].name, x)
        elif bucket.slices:
            plan = self.averager.scheme or self.settings.schedule.scheme
            on_device = self._device_path.takes(bucket.buffer, plan, self.averager.nodes.takes_devices)
            entries = most_entries(bucket.slices, self.averager.scheme)
            staging = self._staging if entries >= bundle.MOST else BufferPool()  # of its own, while others wait with it
            self._put_now(self._bundle.add(bucket.as_buffer(staging, on_device), entries))
        if bucket.is_last:
            self._put_now(self._bundle.rest())

    def _put_now(self, buffers: list[Buffer]) -> None:
        if buffers:
            self.averager.put_buffers(buffers)

    def _finish(self) -> None:
        start = time.perf_counter()
        with record_function("sparsewire: end of the step"):
            self.averager.finish()
        self.profile.task("end of the step", start)
        self._hand_over()

    def _hand_over(self) -> None:
        self.profile.end_step()
        step, self._step = self._step, []
        # Only now: once DDP has its futures, the user may save or read what this step has left behind.
        for queued in step:
            queued.promise.set_result(self._result(queued.bucket))

    def _result(self, bucket: Bucket) -> torch.Tensor:
        if not bucket.is_sparse:
            return bucket.buffer
        return to_coo(self.averager.sparse_means[bucket.slices[0].name], bucket.buffer)
