"""Scenes of several links: in one folder, and one after the other."""

from __future__ import annotations

from scenes_state import SCHEME, Run, expect
from torch_ranks import Stage, assert_same_state, logged

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
