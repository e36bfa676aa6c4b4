"""Scenes of `attach(model, "auto")` that end early: in a callback, in mid-step, as a rank or its schedule fails."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from scenes_attach import backward, build, descend
from scenes_auto import AUTO, follow, join, leave
from torch_ranks import LIMIT, Stage, raises

from sparsewire.errors import CommError, PeerFailed, SchemeError

SOON = LIMIT.total_seconds() - 5  # not by the group's timeout


def ends_in_on_step(stage: Stage, at: int) -> dict[str, Any]:
    """`state_dict` and `detach` in the callback, in dense and in compressed steps."""
    wired, told = stage.ddp(build(), bucket_cap_mb=0.005), []

    def on_step(facts: dict[str, Any]) -> None:
        told.append(link.state_dict()["step"])
        if facts["steps"] == at:
            link.detach()

    link = join(wired, AUTO, on_step=on_step)
    follow(link, {3: 1})
    for step in range(8):
        backward(stage, wired, step)
        descend(wired.module)
    stage.assert_same(wired.module)
    return {"attached": link.attached, "told": told}


def is_left_in_mid_step(stage: Stage, outside: bool) -> list[Any]:
    """Backward raises after the first bucket of a compressed step: the state can be saved, before and after the end."""
    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    link = join(wired, AUTO)
    follow(link, {2: 1})
    for step in range(5):
        backward(stage, wired, step)
        descend(wired.module)
    next(wired.module.first.parameters()).register_hook(_fail)
    try:
        backward(stage, wired, 5)
    except ArithmeticError as error:
        steps = [link.state_dict()["step"]]
        if not outside:
            link.detach(error)
    if outside:
        link.detach()
    return [*steps, link.state_dict()["step"]]


def _fail(gradient: torch.Tensor) -> None:
    raise ArithmeticError("in backward")


def is_left_by_a_rank(stage: Stage, checks: bool) -> int:
    """Before a dense step, with or without a check behind it: the others hear at once, and no rank counts the step."""
    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    link = join(wired, AUTO)
    if checks:
        follow(link, {})
    else:
        link.controller.next_check = 100
    for step in range(3):
        backward(stage, wired, step)
    if stage.rank == 1:
        leave(link, "out of patience")
        return link.step
    start = time.monotonic()
    raises(CommError, lambda: backward(stage, wired, 3))
    assert time.monotonic() - start < SOON
    step = link.step
    leave(link, "enough")
    return step


def loses_a_rank(stage: Stage) -> float:
    """Rank 1 dies before a dense step and cannot say so; how long the others took to notice."""
    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    link = join(wired, AUTO)
    follow(link, {})
    for step in range(3):
        backward(stage, wired, step)
    if stage.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    raises(CommError, lambda: backward(stage, wired, 3))
    seconds = time.monotonic() - start
    leave(link, "enough")
    return seconds


def schedule_fails(stage: Stage) -> str:
    """Rank 1's schedule raises at the very step of a switch: it is told as at any other."""

    def ratios(step: int) -> float:
        return 1 / 0 if step == 4 and stage.rank == 1 else 0.05

    wired = stage.ddp(build(), bucket_cap_mb=0.005)
    link = join(wired, AUTO, ratio_schedule=ratios)
    follow(link, {4: 1})
    for step in range(4):
        backward(stage, wired, step)
    start = time.monotonic()
    text = raises(SchemeError if stage.rank == 1 else PeerFailed, lambda: backward(stage, wired, 4))
    assert time.monotonic() - start < SOON
    leave(link, "enough")
    return text
