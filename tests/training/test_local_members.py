"""Local steps when ranks come and go: in the middle of a meeting, between two, for good or for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from local_counts import count_calls
from local_runs import SIZE, SPARSE, Run

from sparsewire.comm import ThreadCommunicator
from sparsewire.comm.threads import Hub
from sparsewire.errors import CommError, SparsewireError

EVERY = 3
CALLS = 3  # collectives of a meeting: who is where, the frames and what travels dense, the last word


class Lost(Exception):
    """A rank that is gone."""


def in_threads(works: list[Callable[[], Any]]) -> list[Any]:
    """Every function on a thread of its own; their results."""
    results: dict[int, Any] = {}

    def run(place: int) -> None:
        try:
            results[place] = works[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results.values():
        if isinstance(result, BaseException) and not isinstance(result, Lost):
            raise result
    return [results[place] for place in range(len(works))]


class Scene:
    """Of three ranks, rank 1 is lost as it comes to a collective; rank 2 may hear of that after the one before."""

    def __init__(self, call: int, late: bool, **settings: Any) -> None:
        self.call, self.late, self.settings = call, late, settings
        self.first, self.second = Hub(SIZE, 20), Hub(SIZE - 1, 20)

    def play(self, until: int) -> list[Any]:
        return in_threads([lambda rank=rank: self._rank(rank, until) for rank in range(SIZE)])

    def _rank(self, rank: int, until: int) -> Any:
        run = Run(ThreadCommunicator(self.first, rank), every=EVERY, **self.settings)
        count_calls(run.link.comm, lambda number, before: self._fault(rank, number, before))
        try:
            run.train(until)
        except Lost as error:
            self.first.leave(rank, error)
            raise
        except CommError:
            pass
        assert rank != 1
        done = run.step
        with pytest.raises(CommError):
            run.link.meet()
        run.link.resume(ThreadCommunicator(self.second, rank // 2))
        rounds = run.link.rounds
        found = {
            "meeting": rounds.meeting,
            "steps": rounds.counts.steps,
            "total": rounds.total,
            "common": {name: array.copy() for name, array in rounds.common.items()},
            "state": run.link.state_dict(),
            "done": done,
        }
        run.step = done + 1  # the step after which the optimizer's hook raised was made
        run.train(until + 5)
        run.link.detach()
        return {**found, "end": run.bits(), "stats": run.link.stats()}

    def _fault(self, rank: int, number: int, before: bool) -> None:
        if rank == 1 and before and number == self.call:
            raise Lost
        if rank == 2 and self.late and not before and number == self.call - 1:
            raise CommError("the engine gave up")


def reference(meetings: int, **settings: Any) -> list[dict[str, Any]]:
    """The states after some meetings that all three ranks came to."""
    hub = Hub(SIZE, 20)

    def rank(place: int) -> dict[str, Any]:
        run = Run(ThreadCommunicator(hub, place), every=EVERY, **settings)
        run.train(EVERY * meetings)
        state = run.link.state_dict()
        run.link.detach()
        return state

    return in_threads([lambda place=place: rank(place) for place in range(SIZE)])


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize("call", range(1, 2 * CALLS + 1))
def test_a_rank_that_is_lost_at_any_collective_leaves_the_others_agreeing(call: int, late: bool) -> None:
    """Meeting 0 or 1 is held by both survivors or by none, also where only one of them knew that it was."""
    settings = {"outer": "sgd(rate=0.9, momentum=0.5)"}
    scene = Scene(call, late, **settings)
    zero, _, two = scene.play(3 * EVERY)
    held = call // CALLS
    assert zero["meeting"] == two["meeting"] == held
    states = reference(held, **settings)
    for found, state in ((zero, states[0]), (two, states[2])):
        for name, array in found["common"].items():
            assert np.array_equal(array, state["common"][name].numpy()), name
        for name, buffers in state["buffers"].items():
            share = buffers["residual"].numpy() * np.float32((SIZE - 1) / SIZE)
            assert np.array_equal(found["state"]["buffers"][name]["residual"].numpy(), share), name
        assert found["total"] == found["done"] + 1
        assert found["steps"] == found["total"] - EVERY * held
    assert zero["end"] == two["end"]
    assert zero["stats"]["bytes_sent"] > 0


@pytest.mark.parametrize("call", [CALLS + 1, 2 * CALLS])
def test_the_same_with_an_exchange_on_its_way(call: int) -> None:
    zero, _, two = Scene(call, False, overlap=1).play(3 * EVERY + 2)
    assert zero["meeting"] == two["meeting"] == call // CALLS
    assert zero["total"] == zero["done"] + 1 and two["total"] == two["done"] + 1
    assert all(np.array_equal(zero["common"][name], two["common"][name]) for name in zero["common"])
    assert zero["end"] == two["end"]


def test_a_new_rank_takes_over_what_the_others_have() -> None:
    two, three = Hub(2, 20), Hub(3, 20)

    def old(rank: int) -> Any:
        run = Run(ThreadCommunicator(two, rank), every=EVERY, outer="sgd(momentum=0.5)")
        run.train(7)
        residual = run.link.rounds.averager.states.by_name["3.weight"]["residual"].copy()
        local = run.bits()
        run.link.resume(ThreadCommunicator(three, rank))
        assert run.bits() == local
        scaled = run.link.rounds.averager.states.by_name["3.weight"]["residual"]
        assert np.array_equal(scaled, residual * np.float32(1.5))
        return finish(run, 7)

    def new() -> Any:
        run = Run(ThreadCommunicator(three, 2), every=EVERY, outer="sgd(momentum=0.5)", seed=9)
        assert not run.link.rounds.averager.states.by_name
        return finish(run, 7)

    ends = in_threads([lambda: old(0), lambda: old(1), new])
    assert len(set(ends)) == 1 and ends[0][:2] == (2, 1)


def finish(run: Run, step: int) -> tuple[int, int, bytes]:
    where = run.link.rounds.meeting, run.link.rounds.counts.steps
    run.step = step
    run.train(15)
    run.link.detach()
    return (*where, run.bits())


def test_a_rank_that_missed_meetings_keeps_its_own_steps_and_residual() -> None:
    all_, most, again = Hub(3, 20), Hub(2, 20), Hub(3, 20)

    def rank(place: int) -> Any:
        run = Run(ThreadCommunicator(all_, place), every=EVERY)
        run.train(4)
        if place < 2:
            run.link.resume(ThreadCommunicator(most, place))
            run.train(8)
        rounds, local = run.link.rounds, run.link._model.read()
        moved = {name: rounds.common[name] - local[name] for name in local}
        kept = rounds.averager.states.by_name["3.weight"]["residual"].copy()
        run.link.resume(ThreadCommunicator(again, place))
        after = run.link._model.read()
        assert rounds.meeting == 2
        for name, change in moved.items():
            np.testing.assert_allclose(rounds.common[name] - after[name], change, rtol=1e-4, atol=1e-6)
        factor = np.float32(1.5 if place < 2 else 1)
        assert np.array_equal(rounds.averager.states.by_name["3.weight"]["residual"], kept * factor)
        assert any(change.any() for change in moved.values())
        return finish(run, 8)

    assert len(set(in_threads([lambda place=place: rank(place) for place in range(3)]))) == 1


def test_ranks_that_come_together_forget_what_their_guards_have_seen() -> None:
    """One that looks closely, as gradients had vanished, would send norms that a new one does not."""
    one, two = [Hub(1, 20), Hub(1, 20)], Hub(2, 20)

    def rank(place: int) -> Any:
        run = Run(ThreadCommunicator(one[place], 0), every=EVERY)
        run.train(4)
        saved = run.link.rounds.averager.state_dict()["guard"]
        run.link.rounds.averager._guard.load({**saved, "close": 10**6 * (place == 0)})
        run.link.resume(ThreadCommunicator(two, place))
        return finish(run, 4)

    assert len(set(in_threads([lambda place=place: rank(place) for place in range(2)]))) == 1


def test_after_a_last_meeting_that_failed_the_others_can_have_theirs() -> None:
    three, two = Hub(3, 20), Hub(2, 20)

    def rank(place: int) -> Any:
        run = Run(ThreadCommunicator(three, place), every=9)
        run.train(4)
        if place == 1:
            three.leave(1, Lost())
            raise Lost
        with pytest.raises(CommError):
            run.link.detach()
        run.link.resume(ThreadCommunicator(two, place // 2))
        assert run.link.rounds.counts.steps == 4
        run.link.detach()
        return run.bits()

    zero, _, other = in_threads([lambda place=place: rank(place) for place in range(3)])
    assert zero == other


def test_a_detached_link_does_not_resume() -> None:
    hub = Hub(1, 5)
    run = Run(ThreadCommunicator(hub, 0), SPARSE, every=2)
    run.link.detach()
    with pytest.raises(SparsewireError, match="call local_steps again"):
        run.link.resume(ThreadCommunicator(hub, 0))
    with pytest.raises(SparsewireError, match="call local_steps again"):
        run.link.meet()
