"""Local steps: saved at any step, resumed to the bit, resharded to another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import EXACT, SIZE, Run, on_ranks
from torch_ranks import assert_same_state

from sparsewire.comm import Communicator
from sparsewire.core.statefile import pack, read_state
from sparsewire.errors import InputError
from sparsewire.torch import load, reshard, save
from sparsewire.training.checkpoints import KIND

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"every": 4},
    "momentum everywhere": {"every": 4, "outer": "sgd(rate=0.7, momentum=0.9)", "mask_momentum": True},
    "AdamW": {"every": 4, "optimizer": "adamw", "mean": "senders"},
    "dense first": {"every": 3, "dense_rounds": 2},
    "fragments": {"every": 6, "fragments": 2},
    "overlap": {"every": 4, "overlap": 2, "mask_momentum": True, "mix": 0.5},
    "both": {"every": 8, "fragments": 2, "overlap": 3},
}


def keep(run: Run, folder: Path) -> None:
    save(run.link, folder)
    torch.save([run.optimizer.state_dict(), run.model.state_dict()], folder / f"own-{run.rank}.pt")


def take_up(run: Run, folder: Path, step: int) -> None:
    optimizer, model = torch.load(folder / f"own-{run.rank}.pt", weights_only=True)
    run.optimizer.load_state_dict(optimizer)
    run.model.load_state_dict({name: kept for name, kept in model.items() if "num_batches" in name}, strict=False)
    load(run.link, folder)
    run.step = step


@pytest.mark.parametrize("stop", [0, 5, 6, 7, 8])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_a_resumed_run_equals_one_that_never_stopped(settings: dict[str, Any], stop: int, tmp_path: Path) -> None:
    """At any step of a round. The link's state has all weights: the model's own are not needed."""

    def fn(comm: Communicator) -> None:
        whole, first, second = (Run(comm, **settings) for _ in range(3))
        whole.train(20)
        end = whole.link.state_dict()  # which waits: an exchange on its way must not meet the next run's
        first.train(stop)
        keep(first, tmp_path)
        comm.barrier()
        take_up(second, tmp_path, stop)
        assert_same_state(first.link.state_dict(), second.link.state_dict())
        second.train(20)
        assert whole.bits() == second.bits()
        assert_same_state(end, second.link.state_dict())
        for run in (first, second, whole):
            run.link.detach()

    on_ranks(fn)


def test_saving_changes_nothing_and_the_state_is_a_copy() -> None:
    def fn(comm: Communicator) -> bytes:
        run, saved = Run(comm, every=4, overlap=2), []
        for step in range(1, 14):
            run.train(step)
            if comm.rank == 0:
                saved.append((state := run.link.state_dict(), str(state)))
        run.link.detach()
        assert all(str(state) == text for state, text in saved)
        return run.bits()

    assert len(set(on_ranks(fn))) == 1
    plain = on_ranks(lambda comm: _trained(comm))
    assert plain[0] == on_ranks(fn)[0]


def _trained(comm: Communicator) -> bytes:
    run = Run(comm, every=4, overlap=2)
    run.train(13)
    run.link.detach()
    return run.bits()


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize(("old", "new"), [(3, 2), (2, 4), (4, 2), (1, 3)])
def test_another_number_of_ranks_takes_over_the_means(old: int, new: int, overlap: int, tmp_path: Path) -> None:
    """Of what is unsent, and of how far the weights have moved in this round."""
    settings = {"every": 4, "outer": "sgd(rate=0.9, momentum=0.5)", "overlap": overlap}

    def first(comm: Communicator) -> dict[str, Any]:
        run = Run(comm, **settings)
        run.train(9)
        save(run.link, tmp_path)
        state = run.link.state_dict()
        comm.barrier()
        run.link.detach()
        return state

    def second(comm: Communicator) -> dict[str, Any]:
        run = Run(comm, seed=7, **settings)
        load(run.link, tmp_path)
        state = run.link.state_dict()
        assert (run.link.step, run.link.rounds.meeting) == (9, 2)
        run.step = 9
        run.train(20)
        run.link.detach()
        return {**state, "end": run.bits()}

    before, after = on_ranks(first, old), on_ranks(second, new)
    assert len({state["end"] for state in after}) == 1
    assert_same_state(before[0]["common"], after[0]["common"])
    assert_same_state(before[0]["outer"], after[0]["outer"])
    for name, buffers in before[0]["buffers"].items():
        unsent, kept = (sum(state["buffers"][name]["residual"] for state in states) / len(states)
                      for states in (before, after))  # fmt: skip
        assert unsent.any() or not buffers["residual"].any()
        torch.testing.assert_close(kept, unsent)
    for name in before[0]["local"]:
        ends = (sum(landed(state, name) for state in states) / len(states) for states in (before, after))
        torch.testing.assert_close(*ends)


def landed(state: dict[str, Any], name: str) -> torch.Tensor:
    """A rank's weights once an exchange on its way has come in."""
    then = state["pending"].get("then", {}).get(name)
    return state["local"][name] if then is None else state["common"][name] + state["local"][name] - then


def test_between_rounds_no_local_weights_are_saved() -> None:
    def fn(comm: Communicator) -> None:
        run = Run(comm, EXACT, every=4)
        for step, some in ((3, True), (4, False), (5, True)):
            run.train(step)
            assert bool(run.link.state_dict()["local"]) == some
        run.link.detach()

    on_ranks(fn, 2)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    def fn(comm: Communicator) -> None:
        run = Run(comm, every=4, outer="sgd(momentum=0.5)")
        run.train(5)
        state, before = run.link.state_dict(), run.bits()
        other = Run(comm, every=4, norm=False)
        wrong = {
            "a state of attach": {key: value for key, value in state.items() if key != "common"},
            "3 numbers for '0.weight'": {**state, "common": {**state["common"], "0.weight": torch.zeros(3)}},
            "rank 9 of": {**state, "rank": 9},
            "velocity for '0.weight', which outer=": {**state, "outer": {"0.weight": {"velocity": torch.zeros(128)}}},
            "velocity, which memory=": {**state, "buffers": {"0.bias": {"velocity": torch.zeros(16)}}},
        }
        for text, bad in wrong.items():
            with pytest.raises(InputError, match=text):
                run.link.load_state_dict(bad)
            assert_same_state(state, run.link.state_dict())
        with pytest.raises(InputError, match=r"for '1.weight', the model None"):
            other.link.load_state_dict(state)
        assert run.bits() == before
        for one in (run, other):
            one.link.detach()

    on_ranks(fn, 2)


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("part", ["bit", "common", "local", "outer", "counts", "meeting"])
def test_one_ranks_damaged_state_is_loaded_by_nobody(part: str, overlap: int, tmp_path: Path) -> None:
    def fn(comm: Communicator) -> None:
        run = Run(comm, every=4, overlap=overlap, outer="sgd(momentum=0.5)")
        run.train(6)
        path = save(run.link, tmp_path)
        if comm.rank == 1:
            damage(path, part)
        comm.barrier()
        run.train(9)  # with overlap, an exchange is on its way
        before, bits = run.link.state_dict(), run.bits()
        with pytest.raises(InputError, match=r"rank 1: .*sparsewire-00001-of-00003-step6-.*\.sws: "):
            load(run.link, tmp_path)
        assert_same_state(before, run.link.state_dict())
        assert run.bits() == bits
        run.link.detach()

    on_ranks(fn)


def damage(path: Path, part: str) -> None:
    """One bit, or something that is wrong but has its checksum."""
    data, facts = bytearray(path.read_bytes()), read_state(path, KIND)
    data[len(data) // 2] ^= 2
    match part:
        case "common" | "local":
            facts["state"][part]["0.weight"][3] = np.nan
        case "outer":
            facts["state"][part]["0.weight"]["momentum"][3] = np.inf
        case "counts":
            facts["state"][part]["steps"] = "many"
        case "meeting":
            del facts["state"][part]
    path.write_bytes(data if part == "bit" else pack(facts))


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("step", [6, 9])
def test_what_is_saved_while_a_rank_diverges_can_be_loaded(overlap: int, step: int, tmp_path: Path) -> None:
    """The next meeting would undo that rank's round: it begins the round again, the others go on in it."""

    def fn(comm: Communicator) -> bytes:
        first, second = (Run(comm, every=4, overlap=overlap, norm=False) for _ in range(2))
        first.train(step)
        if comm.rank == 1:
            with torch.no_grad():
                first.model[0].weight.fill_(torch.nan)
        save(first.link, tmp_path)
        load(second.link, tmp_path)
        assert all(tensor.isfinite().all() for tensor in second.model.state_dict().values())
        assert second.link.step == step
        second.step = step
        second.train(15)
        for run in (first, second):
            run.link.detach()
        return second.bits()

    assert len(set(on_ranks(fn))) == 1


ODD: list[Any] = [None, -1, 2.5, "x", [], {}, {"0.weight": 1}, {"0.weight": {"residual": 1}}, torch.tensor([torch.nan])]


def test_whatever_is_wrong_with_a_state_is_an_input_error_and_changes_nothing() -> None:
    """Every entry missing, and every entry something else. A few do no harm, such as `pending` with nothing in it."""

    def fn(comm: Communicator) -> int:
        run, told = Run(comm, every=4, overlap=2, outer="sgd(momentum=0.5)"), 0
        run.train(9)
        state = run.link.state_dict()
        wrong = [{key: value for key, value in state.items() if key != gone} for gone in state]
        wrong += [{**state, key: odd} for key in state for odd in ODD]
        wrong += [{**state, "pending": {**state["pending"], key: odd}} for key in state["pending"] for odd in ODD]
        for bad in (*wrong, [], None, "x"):
            try:
                run.link.read_state(bad)
            except InputError:
                told += 1
            assert_same_state(state, run.link.state_dict())
        run.link.detach()
        return told

    assert min(on_ranks(fn, 2)) > 100


def test_states_are_dealt_by_the_public_function_too() -> None:
    def fn(comm: Communicator) -> dict[str, Any]:
        run = Run(comm, every=4)
        run.train(6)
        state = run.link.state_dict()
        run.link.detach()
        return state

    states = on_ranks(fn)
    resharded = reshard(states, 1)[0]
    name = "3.weight"
    torch.testing.assert_close(resharded["local"][name], sum(state["local"][name] for state in states) / SIZE)
