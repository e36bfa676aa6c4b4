"""Scenes of what goes wrong: a rank that dies, ranks that disagree, bytes that are not a frame, misuse."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from scenes_attach import assert_equal_gradients, backward, build, descend
from scenes_state import Run
from torch_ranks import EXACT, Stage

from sparsewire.comm import Communicator
from sparsewire.errors import CommMismatch, InputError, SchemeError, SparsewireError
from sparsewire.exchange import Turn
from sparsewire.torch import attach

SCHEME = "topk(5%) | memory=residual"


def is_killed(stage: Stage, folder: str, victim: int, at: int, timeout: float) -> dict[str, Any]:
    """Trains, saves every fifth step; one rank dies in the middle of step `at`, on its courier's thread."""
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
        except RuntimeError as error:
            seconds = time.monotonic() - begin
            run.link.detach()
            return {"text": str(error), "seconds": seconds, "step": run.step}
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


def differ_in(stage: Stage, what: str) -> str:
    """Rank 1 attaches with something else: an error on every rank, and the model still trains, dense."""
    mine: dict[str, Any] = {"scheme": SCHEME}
    if stage.rank == 1:
        mine |= {"scheme": "topk(6%)"} if what == "scheme" else {what: {"seed": 3, "dense_below": 9}.get(what, 2)}
    plain, wired = stage.ddp(build()), stage.ddp(build())
    text = _raises(CommMismatch, lambda: attach(wired, **mine))
    for model in (plain, wired):
        backward(stage, model, 0)
    assert_equal_gradients(wired.module, plain.module)
    return text


def sends_noise(stage: Stage) -> list[str]:
    """Rank 1's message is damaged on its way, in the second step."""
    run = Run(stage, scheme=SCHEME)
    run.train(1)
    gather: Callable[..., Any] = run.link.comm.all_gather

    def damaged(data: bytes, channel: str = "") -> Any:
        return gather(data[:-5] + b"noise" if stage.rank == 1 else data, channel)

    run.link.comm.all_gather = damaged
    texts = [_raises(RuntimeError, lambda: run.train(2)) for _ in range(2)]  # and it stays an error
    run.link.detach()
    return texts


def cannot_encode(stage: Stage) -> str:
    """Rank 2 fails on its own, before it has anything to send."""
    run = Run(stage, scheme=SCHEME)
    run.train(1)
    seal = Turn.seal
    if stage.rank == 2:
        Turn.seal = _no_room
    try:
        begin = time.monotonic()
        text = _raises(RuntimeError, lambda: run.train(2))
        assert time.monotonic() - begin < 5
    finally:
        Turn.seal = seal
    run.link.detach()
    return text


def _no_room(*_: Any) -> Any:
    raise MemoryError("no room")


def a_callback_that_raises(stage: Stage) -> str:
    """The user's own `on_step` is broken: backward says so."""
    run = Run(stage, scheme=SCHEME, on_step=_no_room)
    text = _raises(RuntimeError, lambda: run.train(1))
    run.link.detach()
    return text


def failed_models_can_be_attached_again(stage: Stage) -> None:
    """After a failure: detach, attach, and all is well."""
    wired = stage.ddp(build())
    link = attach(wired, SCHEME, on_step=_no_room)
    _raises(RuntimeError, lambda: backward(stage, wired, 0))
    link.detach()
    plain = stage.ddp(build())
    with attach(wired, EXACT):
        for step in range(3):
            for model in (plain, wired):
                model.zero_grad()
                backward(stage, model, step)
            assert_equal_gradients(wired.module, plain.module)


def misuse(stage: Stage) -> None:
    """Each wrong argument is named, and leaves the model as it was."""
    wired = stage.ddp(build())
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (InputError, "DistributedDataParallel, not Plain", lambda: attach(wired.module, SCHEME)),
        (InputError, "'layer.*' matches no parameter; there are last.weight", lambda: attach(
            wired, SCHEME, exclude=["norm.*", "layer.*"])),
        (InputError, "select_per is 'parameter' or 'bucket', not 'layer'", lambda: attach(
            wired, SCHEME, select_per="layer")),
        (SchemeError, "did you mean 'topk'", lambda: attach(wired, "topj(1%)")),
        (SchemeError, "ratio", lambda: attach(wired, "nonzero", ratio_schedule=[(3, 0.5)])),
    ]  # fmt: skip
    for kind, words, call in wrong:
        text = _raises(kind, call)
        assert words in text, text
    link = attach(wired, SCHEME)
    assert "already" in _raises(SparsewireError, lambda: attach(wired, SCHEME))
    link.detach()
    link.detach()  # a second time is nothing
    with attach(wired, SCHEME):
        backward(stage, wired, 0)


def comes_and_goes(stage: Stage, kind: str = "plain") -> None:
    """Attached, detached, attached: gradients are plain DDP's, whenever nothing is lossy."""
    plain, wired = stage.ddp(build(kind)), stage.ddp(build(kind))
    for round_ in range(3):
        link = attach(wired, EXACT)
        assert link.comm.size == stage.size
        for step in range(4):
            if step == 2:
                link.detach()
            for model in (plain, wired):
                backward(stage, model, 10 * round_ + step)
            assert_equal_gradients(wired.module, plain.module)
            for model in (plain, wired):
                descend(model.module)
        assert link.stats()["steps"] == 2


def _raises(kind: type[BaseException], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def two_links_at_once(stage: Stage) -> None:
    """Two models, each with a link of its own: couriers do not mix."""
    models = [stage.ddp(build()) for _ in range(2)]
    plain = stage.ddp(build())
    comms: list[Communicator] = []
    links = [attach(model, EXACT) for model in models]
    for step in range(3):
        losses = [backward(stage, model, step) for model in (*models, plain)]
        assert len({loss.item() for loss in losses}) == 1
        for model, link in zip(models, links, strict=True):
            assert_equal_gradients(model.module, plain.module)
            comms.append(link.comm)
        for model in (*models, plain):
            model.zero_grad()
    assert len(set(map(id, comms))) == 2
    for link in links:
        link.detach()
