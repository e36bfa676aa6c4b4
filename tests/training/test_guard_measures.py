"""What the guard measures: ratios that a loss scale does not change, of checks that count, with a gradient beside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guarded import AFTER, SIZES, averager, gradients, guard_of, step_of, train

from sparsewire.comm import Communicator, run_ranks
from sparsewire.training.guard import EVERY, LIMIT, Guard


@pytest.mark.parametrize("counted", [True, False], ids=["not finite", "not counted"])
def test_a_check_in_a_step_that_is_spoiled_changes_nothing(counted: bool) -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, decides_late=True)
        for step in range(EVERY - 1):
            one.put(gradients(comm, step))
            one.write_means(one.prepare())
            one.settle(True)
        before = one.state_dict()["guard"]
        x = gradients(comm, EVERY - 1)
        if counted and comm.rank == 0:
            x["w"][3] = np.nan
        one.put(x)
        one.write_means(one.prepare())
        one.settle(counted)
        assert one.state_dict()["guard"] == before and before["gradient"] == [0.0, 0]
        one.step = EVERY - 1
        one.put(gradients(comm, EVERY - 1))
        one.write_means(one.prepare())
        one.settle(True)
        assert one.state_dict()["guard"]["gradient"][1] == 1

    run_ranks(2, fn)


def test_a_loss_scale_changes_no_ratio() -> None:
    """By powers of two: exactly, in the middle of the training and in a saved state."""

    def fn(comm: Communicator) -> None:
        scale = [1.0]
        scaled, plain = averager(comm, scale=lambda: scale[0]), averager(comm)
        for step in range(AFTER + 17):
            scale[0] = 2.0 ** (step // 10)
            x = gradients(comm, step, burst=False)
            step_of(scaled, {name: array * np.float32(scale[0]) for name, array in x.items()})
            step_of(plain, x)
        assert guard_of(scaled)["ratio"] == pytest.approx(guard_of(plain)["ratio"], rel=1e-6)
        scale[0] = 0.25
        later = averager(comm, scale=lambda: scale[0])
        later.load_state_dict(scaled.state_dict())
        mine, theirs = (one.state_dict()["guard"] for one in (later, plain))
        assert mine["gradient"][0] == pytest.approx(theirs["gradient"][0] - 2)
        assert mine["beside"] == pytest.approx(theirs["beside"], rel=1e-6)

    run_ranks(2, fn)


def test_a_loss_scale_that_collapses_on_one_rank_is_an_alarm_on_all() -> None:
    def fn(comm: Communicator) -> list[dict[str, Any]]:
        one = averager(comm, action="warn", scale=lambda: 0.5 if comm.rank else 8.0)
        train(one, comm, range(EVERY), burst=False)
        return list(guard_of(one)["alarms"])

    expected = [{"step": EVERY - 1, "reason": "the loss scale has fallen below 1"}]
    assert run_ranks(2, fn) == [expected] * 2


def test_a_gradient_that_shrinks_is_no_alarm_and_one_that_grows_slowly_neither() -> None:
    found = Guard("warn", remembers=True, rank=1)
    for check in range(200):
        found.note((20 * 0.7 ** (check // 2), 0.7**check, 0.1 * 0.7**check, 0))  # what waits shrinks more slowly
        found.follow(check, finite=True)
    assert not found.stats()["guard"]["alarms"]
    found = Guard("warn", remembers=True, rank=1)
    for check in range(200):
        found.note((50 * 1.05**check, 1.05**check, 1, 0))
        found.follow(check, finite=True)
    assert not found.stats()["guard"]["alarms"] and 50 < found.stats()["guard"]["ratio"] < LIMIT


def test_a_first_gradient_of_zero_is_not_the_usual_one() -> None:
    found = Guard("warn", remembers=True, rank=1)
    for check in range(9):
        found.note((5.0, 0.0 if check == 0 else 1.0, 0.1, 0))
        found.follow(check, finite=True)
    assert not found.stats()["guard"]["alarms"] and found.stats()["guard"]["ratio"] == 5


def test_gradients_that_vanish_beside_others_that_stay_are_an_alarm_on_all_ranks() -> None:
    """As where units have died: only what travels dense has a gradient still."""

    def fn(comm: Communicator, all_of_it: bool) -> list[int]:
        one = averager(comm, action="warn")
        for step in range(100):
            x = gradients(comm, step, burst=False)
            for name in SIZES if all_of_it else ("w", "v"):
                x[name] *= np.float32(1 if step < 20 else 1e-6)
            step_of(one, x)
        return [alarm["step"] for alarm in guard_of(one)["alarms"]]

    assert run_ranks(2, lambda comm: fn(comm, False)) == [[35]] * 2  # the second check
    assert run_ranks(2, lambda comm: fn(comm, True)) == [[]] * 2


def test_nothing_is_measured_where_nothing_waits_or_nobody_looks() -> None:
    for one in (Guard(None, remembers=True, rank=0), Guard("warn", remembers=False, rank=0)):
        assert not any(one.due(step, sparse=True) for step in range(50)) and not one.stats()
    watching = Guard("warn", remembers=True, rank=0)
    assert [step for step in range(40) if watching.due(step, sparse=True)] == [15, 31]
    assert not any(watching.due(step, sparse=False) for step in range(40))
