"""Scenes of what goes wrong: a rank that dies or raises, bytes that are not a frame; links that come and go."""

from __future__ import annotations

import gc
import os
import signal
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from scenes_attach import assert_equal_gradients, backward, build, descend
from scenes_state import Run
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_ranks import EXACT, Stage, raises, told

from sparsewire.comm.torch import TorchCommunicator
from sparsewire.errors import CommError, CommTimeout, PeerError, PeerFailed
from sparsewire.exchange import ExchangeContext
from sparsewire.torch import attach

SCHEME = "topk(5%) | memory=residual"


def is_killed(stage: Stage, folder: str, victim: int, at: int, timeout: float) -> dict[str, Any]:
    """Trains, saves every fifth step; one rank dies in the middle of step `at`, on its communication thread."""
    run = Run(stage, timeout=timeout)
    gather = run.link.comm.all_gather

    def die(*args: Any) -> Any:
        if run.link.step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return gather(*args)

    if stage.rank == victim:
        run.link.comm.all_gather = die
    while True:
        begin = time.monotonic()
        try:
            run.train(run.step + 1)
        except CommError as error:
            seconds = time.monotonic() - begin
            run.link.detach()
            return {"text": told(error), "seconds": seconds, "step": run.step}
        if run.step % 5 == 0:
            run.save(folder)


def goes_on_from(stage: Stage, folder: str, end: int) -> int:
    """From the files of a run that was killed = a run that never stopped."""
    whole, resumed = Run(stage), Run(stage)
    whole.train(end)
    resumed.load(folder)
    begin = resumed.step
    resumed.train(end)
    whole.assert_same(resumed)
    for run in (whole, resumed):
        run.link.detach()
    return begin


def sends_noise(stage: Stage) -> list[str]:
    """Rank 1's message is damaged on its way, in the second step."""
    run = Run(stage, scheme=SCHEME)
    run.train(1)
    gather: Callable[..., Any] = run.link.comm.all_gather

    def damaged(data: bytes, channel: str = "") -> Any:
        return gather(data[:-5] + b"noise" if stage.rank == 1 else data, channel)

    run.link.comm.all_gather = damaged
    texts = [raises(PeerError, lambda: run.train(2)) for _ in range(2)]  # and it stays an error
    run.link.detach()
    return texts


def cannot_encode(stage: Stage) -> str:
    """Rank 2 fails on its own, before it has anything to send."""
    return fails_to_encode(stage, MemoryError if stage.rank == 2 else PeerError, within=15)


def fails_to_encode(stage: Stage, kinds: Any, within: float, **settings: Any) -> str:
    """What a rank raises in a training in which rank 2 cannot encode; nobody waits for it."""
    run = Run(stage, scheme=SCHEME, **settings)
    run.train(1)
    seal = ExchangeContext.encode
    if stage.rank == 2:
        ExchangeContext.encode = _no_room
    try:
        begin = time.monotonic()
        text = raises(kinds, lambda: run.train(2))
        assert time.monotonic() - begin < within
    finally:
        ExchangeContext.encode = seal
    run.link.detach()
    return text


def _no_room(*_: Any) -> Any:
    raise MemoryError("no room")


def a_callback_that_raises(stage: Stage) -> str:
    """The user's own `on_step` is broken: backward says so."""
    run = Run(stage, scheme=SCHEME, on_step=_no_room)
    text = raises(MemoryError, lambda: run.train(1))
    run.link.detach()
    return text


def failed_models_can_be_attached_again(stage: Stage) -> None:
    """After a failure: detach, attach, and all is well."""
    wired = stage.ddp(build())
    link = attach(wired, SCHEME, on_step=_no_room)
    raises(MemoryError, lambda: backward(stage, wired, 0))
    link.detach()
    plain = stage.ddp(build())
    with attach(wired, EXACT):
        for step in range(3):
            for model in (plain, wired):
                model.zero_grad()
                backward(stage, model, step)
            assert_equal_gradients(wired.module, plain.module)


def waits_in_vain(stage: Stage, timeout: float) -> str:
    """Rank 1 does not come to its third step in time (to the second DDP itself waits: it rebuilds its buckets)."""
    before = _descriptors()
    run = Run(stage, timeout=timeout)
    run.train(2)
    if stage.rank == 1:
        time.sleep(2 * timeout)
    try:
        run.train(3)
    except CommError as error:
        run.link.detach()
        assert _descriptors() == before  # although the error is still at hand, with its traceback
        return told(error)
    raise AssertionError("nobody was waited for")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def one_raises(stage: Stage, where: str) -> dict[str, Any]:
    """Rank 1 raises; `with`, or `detach` with the error, ends all of them at once."""
    run = Run(stage)
    run.train(2)  # what is slow the first time
    run.link.detach()
    begin = time.monotonic()
    try:
        _train_until_one_raises(stage, where)
    except Exception as error:
        return {"text": told(error), "seconds": time.monotonic() - begin}
    raise AssertionError("nothing was raised")


def _train_until_one_raises(stage: Stage, where: str) -> None:
    mine = stage.rank == 1
    settings: dict[str, Any] = {}
    if where == "on_step" and mine:
        settings["on_step"] = lambda told: told["steps"] < 3 or _no_room()
    if where == "ratio_schedule":
        settings["ratio_schedule"] = lambda step: 0.1 if step < 3 or not mine else 1 / 0
    if where == "a bad ratio":
        settings["ratio_schedule"] = lambda step: 0.1 if step < 3 or not mine else 7
    run = Run(stage, **settings)
    if where == "backward" and mine:
        run.model.module.first.weight.register_hook(lambda grad: None if run.step < 3 else _no_room())
    if where == "with":
        with run.link:
            _steps(run, mine)
    try:
        _steps(run, mine and where in ("loop", "detach"), 3 if where == "detach" else 6)
    except BaseException as error:
        run.link.detach(error)
        raise
    run.link.detach()


def _steps(run: Run, fails: bool, end: int = 6) -> None:
    for step in range(end):
        run.train(step)
        if step == 2 and fails:
            raise ValueError("no such file")


def one_raises_while_others_are_late(stage: Stage, folder: str) -> dict[str, Any]:
    """Rank 1 raises in the middle of backward, with a collective that the others come to when it has left its link."""
    run, left, deadline = Run(stage), Path(folder) / "left", time.monotonic() + 25
    run.train(2)
    if stage.rank == 1:
        run.model.module.first.weight.register_hook(lambda grad: _no_room())
    else:
        while not left.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    has_left = left.exists()
    text = raises(MemoryError if stage.rank == 1 else PeerFailed, lambda: _last_steps(run))
    left.touch()
    return {"text": text, "came late": has_left}


def _last_steps(run: Run) -> None:
    with run.link:
        run.train(5)


def leaves_nothing_behind(stage: Stage, fails: bool, rounds: int = 4, **settings: Any) -> None:
    """Without the garbage collector: no file descriptors, no links, no residuals."""
    gc.collect()
    gc.disable()
    try:
        kept = [_come_and_go(stage, fails, **settings) for _ in range(rounds)]
        assert len(set(kept)) == 1, kept
    finally:
        gc.enable()


def _come_and_go(stage: Stage, fails: bool, **settings: Any) -> int:
    wired = stage.ddp(build())
    link = attach(wired, SCHEME, on_step=_no_room if fails else None, **settings)
    gone = weakref.ref(link), weakref.ref(link.averager.states)
    if fails:
        raises(MemoryError, lambda: backward(stage, wired, 0))
    else:
        backward(stage, wired, 0)
    link.detach()
    del link
    assert [ref() for ref in gone] == [None, None]
    return _descriptors()


def attaches_alone(stage: Stage) -> str:
    """Only rank 0 calls `attach`."""
    wired = stage.ddp(build())
    return raises(CommTimeout, lambda: attach(wired, EXACT, timeout=2)) if stage.rank == 0 else ""


def tells_what_matters(stage: Stage) -> str:
    """Rank 1 raises: the traceback of the others, as a script would print it."""
    run = Run(stage)
    try:
        with run.link:
            _steps(run, stage.rank == 1)
    except PeerFailed as error:
        return "".join(traceback.format_exception(error))
    except ValueError:
        return ""
    raise AssertionError("nothing was raised")


def only_has_accelerators(stage: Stage, scheme: str) -> None:
    """The model's group has no backend for the CPU, as NCCL's has none: ours has, and does without the model's.

    DDP's own collectives of such a group fail here; it has none before it regroups its buckets for the second step.
    """
    group = dist.new_group(list(range(stage.size)), backend="cuda:gloo")
    wired, plain = DDP(build(), process_group=group, init_sync=False), stage.ddp(build())
    with attach(wired, scheme, dense_below=1):
        for model in (plain, wired):
            backward(stage, model, 0)
    if scheme == EXACT:
        assert_equal_gradients(wired.module, plain.module)
    descend(wired.module)
    stage.assert_same(wired.module)


def joins_bits_on_a_device(stage: Stage) -> None:
    """To torch "cpu:0" is not "cpu": what would be staged on an accelerator is, and nothing bitwise is asked of it."""
    device, host = TorchCommunicator(stage.group, "cpu:0"), TorchCommunicator(stage.group)
    reduce = dist.all_reduce
    for bits in (np.array([1 << stage.rank, 64], np.uint8), np.zeros(0, np.uint8), np.full((2, 2), stage.rank)):
        due = host.all_reduce(bits, "bor")
        dist.all_reduce = _no_room
        try:
            found = device.all_reduce(bits, "bor")
        finally:
            dist.all_reduce = reduce
        assert found.dtype == due.dtype and np.array_equal(found, due)
