"""`AutoLink`: a link whose steps are dense or compressed, as its controller says.

Compressed steps are any link's. Dense ones cost what torch's own allreduce_hook does: each bucket is divided and added
up where it is, by an all_reduce that begins in the hook, and the last bucket's hook waits for all of them, when
backward has nothing left to do. No thread, callback or copy stands between. That is possible as long as
nothing is unsent: the first dense step after compressed ones goes through the averager, which sends what waits.

All ranks take the controller's checks at the same steps. After a dense step the numbers travel while the next step is
computed; after a compressed one they travel on the communication thread, once DDP has its gradients. A step begins when
the numbers are there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sparsewire.codecs.transform import Fourier
from sparsewire.comm.torch import translate
from sparsewire.core.statefile import reading
from sparsewire.errors import CommError, InputError
from sparsewire.kernels import Array
from sparsewire.planning.auto import Auto, AutoSchedule, Controller, measure_network, probe, survey
from sparsewire.planning.auto.rates import PROBE_SECONDS
from sparsewire.planning.auto.samples import WINDOW
from sparsewire.planning.auto.step_timer import Instant, TimedStep
from sparsewire.training.recipe import Recipe
from sparsewire.training.residuals.momentum import left_behind
from sparsewire.training.schedule import SchemeSchedule, Settings
from sparsewire.training.settings import usable

from ..group import CommGroup
from ..optimizers import Fit
from .comm_thread import QueuedBucket
from .hook import HookState
from .link import Link
from .streams import future_on, step_timer

Promise = torch.futures.Future[torch.Tensor]


def auto_settings(settings: Settings, auto: Auto) -> Settings:
    """The settings with a schedule that the controller sets; each candidate must suit them."""
    if settings.nodes not in (None, 1):
        raise InputError("auto predicts ranks that are all alike: leave nodes out, or name a scheme instead of auto")
    if settings.on_divergence == "dense":
        raise InputError(
            'auto goes dense where that is faster: write on_divergence="warn", or a scheme instead of auto'
        )
    schedule = settings.schedule
    for plan in auto.plans:
        replace(settings, schedule=SchemeSchedule(usable(plan), schedule.warmup_steps, schedule.ratios))
    return replace(settings, schedule=AutoSchedule(auto.plans[0], schedule.warmup_steps, schedule.ratios))


def open_controller(group: CommGroup, auto: Auto, settings: Settings, numel: int) -> Controller:
    """A controller that knows this link and these machines. Every rank calls it."""
    codecs, link = survey(group.comm, auto.plans, numel), measure_network(group.comm, PROBE_SECONDS)
    assert isinstance(settings.schedule, AutoSchedule)
    late = settings.select_per == "model" or settings.clip_norm is not None
    return Controller(
        auto.plans, codecs, link, group.comm.size, settings.schedule.active, float(auto.margin),
        settings.schedule.warmup_steps, late, speaks=group.comm.rank == 0,
    )  # fmt: skip


class AutoLink(Link):
    """Made by `attach(model, "auto")`; `stats()["auto"]` says what it does and why."""

    def __init__(
        self, names: dict[torch.Tensor, str], group: CommGroup, settings: Settings, hook: HookState,
        fit: Fit | None, fourier: Fourier | None, controller: Controller, recipe: Recipe | None = None,
    ) -> None:  # fmt: skip
        self.controller, self.times = controller, step_timer(parameter.device for parameter in names)
        self._timed: deque[tuple[int, TimedStep]] = deque(maxlen=WINDOW)  # steps since the last check
        self._own = group
        on_host = all(parameter.device.type == "cpu" for parameter in names)
        self._engine = group.comm if on_host else group.comm.beside(hook.group)  # which knows the accelerator
        self._inside = self._direct = False  # within a step's buckets; whether the step needs no averager
        self._clean = False  # nothing is unsent, and no gradient is sparse: known after the first step
        needs = _remembers(settings, names.values()), settings.clip_norm, settings.on_step
        needed = np.array([float(any(needs))])  # an averager in dense steps, too; on_step may be one rank's alone
        self._free = not group.comm.all_reduce(needed, "max").item()
        self._nbytes = 0
        self._works: list[dist.Work] = []
        self._left, self._lock = 1, threading.Lock()  # exchanges on an accelerator: the last, and those begun
        self._dense_seconds = 0.0
        self._asked: tuple[int, dist.Work, torch.Tensor] | None = None  # a pending check
        self._lost: CommError | None = None
        self._idle = threading.Event()  # the communication thread has nothing to do
        self._idle.set()
        super().__init__(names, group, settings, hook, fit, fourier, recipe)

    def stats(self) -> dict[str, Any]:
        """The statistics of any link, and under "auto" what was chosen, when and why."""
        return {**super().stats(), "auto": self.controller.stats()}

    def state_dict(self) -> dict[str, Any]:
        self._finish_check()
        return {**super().state_dict(), "auto": {**self.controller.state_dict(), "clean": self._clean}}

    def read_state(self, state: Mapping[str, Any]) -> Any:
        ready, auto = super().read_state(state), state.get("auto")
        with reading():
            self.controller.check_state(auto)
            return ready, auto, bool((auto or {}).get("clean"))

    def take_over(self, ready: Any) -> None:
        self._finish_check()
        inner, auto, self._clean = ready
        super().take_over(inner)
        self.times.clear()
        self._timed.clear()
        self.controller.load_state_dict(auto, self.step)

    def gather(self, data: bytes) -> list[bytes]:
        self._finish_check()
        return super().gather(data)

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._finish_check()
        self._asked, self._works = None, []  # who holds them holds the sockets
        super()._end(error)

    # --- what the hook calls, on autograd's thread ---

    def handle(self, bucket: dist.GradBucket) -> Promise:
        buffer, is_last = bucket.buffer(), bucket.is_last()
        if not self._inside:
            self._begin()
        self._inside = not is_last
        numel = buffer.numel() if buffer.layout != torch.sparse_coo else _about(buffer._values().numel())
        self._nbytes += numel * buffer.element_size()
        self.times.bucket(numel, numel * buffer.element_size())
        if self._lost is not None:
            return self._give_up(self._lost, buffer, is_last)
        return self._carry(buffer, is_last) if self._direct else super().handle(bucket)

    def _begin(self) -> None:
        self._finish_check()
        self._note(self.times.begin())
        self._nbytes, self._works, self._left = 0, [], 1
        failed = self._comm_thread.error is not None
        self._direct = self._clean and self._free and not failed and self._is_dense()
        if self._direct:
            self.profile.forget()
        if not (self._direct or failed):
            self._idle.clear()

    def _note(self, timed: TimedStep | None) -> None:
        if timed is not None:
            self._timed.append((self.step - 1, timed))

    def _report(self, probe: tuple[float, float] = (0.0, 0.0)) -> Array:
        """What this rank measured since the last check; on a device the host waits for the steps to end."""
        for step, timed in self._timed:
            self.controller.note(step, timed.sample())
        self._timed.clear()
        return self.controller.report(probe)

    def _is_dense(self) -> bool:
        """Whether the step is dense. A schedule that fails does so on the communication thread, too, which tells the
        other ranks."""
        try:
            return self.averager.scheme is None
        except Exception:
            return False

    def _finish_check(self) -> None:
        """Waits for a check that is pending, and follows it; not within a step, which a rank may have left."""
        while not (self._inside or self._comm_thread.is_here or self._idle.wait(0.1)):
            if self._comm_thread.error is not None:
                return
        asked, self._asked = self._asked, None
        if asked is None:
            return
        step, work, agreed = asked
        try:
            self._own.wait(work)
        except CommError as error:
            self._lost = error
        else:
            self.controller.decide(step, agreed.cpu().numpy())

    def _carry(self, buffer: torch.Tensor, is_last: bool) -> Promise:
        """Averages a bucket as plain DDP does."""
        begun, promise = self.times.timer(), future_on(buffer.device)
        try:
            work = self._engine.start_all_reduce(buffer.div_(self.comm.size))
            if is_last:
                self._ask()
        except CommError as error:
            return self._give_up(error, buffer, is_last)
        if buffer.device.type != "cpu":
            self._count(0 if is_last else 1)
            work.get_future().add_done_callback(partial(self._carried, promise, buffer, begun))
            return self._comm_thread.watched(promise, is_last)
        self._works.append(work)
        if self.controller.due(self.step + 1) and not self.controller.due(self.step):
            work.get_future().add_done_callback(lambda _: self.times.span(begun))  # each is timed before a check
        failed = self._wait() if is_last else None
        if failed is not None:
            return self._give_up(failed, buffer, is_last)
        promise.set_result(buffer)
        return promise

    def _wait(self) -> CommError | None:
        """DDP copies no bucket before it has handed over the last. What went wrong keeps no work, and so no socket."""
        works, self._works = self._works, []
        for work in works:
            try:
                self._own.wait(work)
            except CommError as error:
                return error
        self.times.end(busy=0.0)
        self.averager.count_dense_step(self._nbytes)
        return None

    def _count(self, more: int) -> None:
        """On an accelerator, where nothing may wait, a step ends with the exchange that ends last."""
        with self._lock:
            self._left += more
            if not self._left:
                self.averager.count_dense_step(self._nbytes)

    def _carried(self, promise: Promise, buffer: torch.Tensor, begun: Instant, future: Any) -> None:
        try:
            future.value()
        except RuntimeError as error:
            self._comm_thread.fail(translate("all_reduce", error), promise, buffer)
        else:
            self.times.span(begun)
            self._count(-1)
            promise.set_result(buffer)

    def _ask(self) -> None:
        """Sends the controller's report, if it is due, behind the last bucket of a dense step without an averager."""
        if self.controller.due(self.step):
            report = torch.from_numpy(self._report()).to(self._engine.device)
            self._asked = self.step, self._engine.start_all_reduce(report, "max"), report

    def _give_up(self, error: CommError, buffer: torch.Tensor, is_last: bool) -> Promise:
        promise = future_on(buffer.device)
        self._asked, self._works = None, []  # who holds them holds the sockets
        self._comm_thread.fail(error, promise, buffer)
        return self._comm_thread.watched(promise, is_last)

    # --- what the communication thread does ---

    def _work(self, queued: QueuedBucket) -> None:
        try:
            super()._work(queued)
            if queued.bucket.is_last:
                self._check()
        except BaseException:
            self._idle.set()
            raise
        if queued.bucket.is_last:
            self._idle.set()

    def _finish(self) -> None:
        tables = any(queued.bucket.is_sparse for queued in self._step)
        start = time.perf_counter()
        finite = self.averager.finish()
        self.profile.task("end of the step", start)
        self._clean = not (tables or self.averager.was_sparse) and (finite or self._clean)
        seconds = self.averager.clock.seconds.get("dense", 0.0)
        busy, self._dense_seconds = seconds - self._dense_seconds, seconds
        self.times.end(busy)
        self._hand_over()

    def _check(self) -> None:
        """All ranks, at the same step, exchange what they measured, and decide."""
        step = self.step - 1
        if self.controller.due(step):
            self._note(self.times.take())
            nbytes = self.controller.probe_bytes(step)
            measured = probe(self.comm, nbytes) if nbytes else (0.0, 0.0)
            self.controller.decide(step, self.comm.all_reduce(self._report(measured), "max"), nbytes)


def _remembers(settings: Settings, names: Iterable[str]) -> bool:
    """Whether dense steps go through the buffers of any parameter."""
    memory = settings.schedule.scheme.memory
    return memory.remembers_dense and not all(map(left_behind(settings, memory), names))


def _about(numel: int) -> int:
    """The next power of two: of a table each step has other rows, and no step is to be predicted anew for that."""
    return 1 << max(0, numel - 1).bit_length()
