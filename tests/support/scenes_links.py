"""Scenes of several links: in one folder, and one after the other."""

from __future__ import annotations

import threading

from scenes_attach import assert_equal_gradients, backward, build, step_alike
from scenes_state import SCHEME, Run, expect
from torch_ranks import EXACT, Stage, assert_same_state, logged

from sparsewire.comm import Communicator
from sparsewire.torch import attach, load, save


def two_links_in_one_folder(stage: Stage, folder: str) -> None:
    """Neither overwrites the other's files without being told apart."""
    one, other = Run(stage), Run(stage)
    one.train(2)
    other.train(3)
    save(one.link, folder)
    expect("another link's state", lambda: save(other.link, folder))
    save(other.link, folder, name="second")
    stage.group.barrier().wait()
    again = Run(stage)
    for name, run in (("sparsewire", one), ("second", other)):
        load(again.link, folder, name=name)
        assert_same_state(again.link.state_dict(), run.link.state_dict())
    for run in (one, other, again):
        run.link.detach()


def detaches_with_unsent_gradients(stage: Stage) -> str:
    """What was logged; the state can still be read, and a new link goes on from it."""
    whole, first = Run(stage), Run(stage)
    with logged() as lines:
        whole.train(4)
        first.train(2)
        first.link.detach()
    state = first.link.state_dict()
    first.link = attach(first.model, SCHEME)
    first.link.load_state_dict(state)
    first.train(4)
    whole.assert_same(first)
    for run in (whole, first):
        run.link.detach()
    return " ".join(lines)


def comes_and_goes(stage: Stage, kind: str = "plain") -> None:
    """Attached, detached, attached: gradients are plain DDP's, whenever nothing is lossy."""
    plain, wired = stage.ddp(build(kind)), stage.ddp(build(kind))
    for round_ in range(3):
        link = attach(wired, EXACT)
        assert link.comm.size == stage.size
        for step in range(4):
            if step == 2:
                link.detach()
            step_alike(stage, plain, wired, 10 * round_ + step)
        assert link.stats()["steps"] == 2


def two_links_at_once(stage: Stage) -> None:
    """Two models, each with a link of its own: communication threads do not mix."""
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


def detaches_in_on_step(stage: Stage) -> None:
    """After the second step the link is gone; gradients go on as plain DDP's."""
    plain, wired = stage.ddp(build()), stage.ddp(build())
    link = attach(wired, EXACT, on_step=lambda told: link.detach() if told["steps"] == 2 else None)
    for step in range(5):
        step_alike(stage, plain, wired, step)
    assert link.step == 2
    link.detach()
    threads = [thread for thread in threading.enumerate() if "sparsewire" in thread.name]
    for thread in threads:  # it ends by itself, as soon as all ranks have come
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    with attach(wired, EXACT):
        backward(stage, wired, 0)
