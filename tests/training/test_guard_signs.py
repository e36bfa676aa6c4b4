"""The guard's sign of units that die: gradients that have vanished beside what travels dense, twice."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import make

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.training.averager import Averager
from sparsewire.training.guard import CLOSE, EVERY, LOOK, Guard
from sparsewire.training.schedule import SchemeSchedule, Settings

SIZES = {"w": 1200, "v": 700, "b": 5}  # "b" travels dense


def averager(comm: Communicator) -> Averager:
    schedule = SchemeSchedule(sw.scheme("topk(10%) | values=raw | memory=residual"))
    return Averager(comm, Settings(schedule, dense_below=10))


def step_of(one: Averager, comm: Communicator, step: int, factor: float = 1.0) -> None:
    """A step whose compressed parameters have gradients of that size."""
    x = {name: make("normal", size, "float32", 100 * step + 10 * comm.rank + place)
         for place, (name, size) in enumerate(SIZES.items())}  # fmt: skip
    for name in ("w", "v"):
        x[name] *= np.float32(factor)
    one.put(x)
    assert one.finish()


def alarms_of(one: Averager) -> list[int]:
    return [alarm["step"] for alarm in one.stats()["guard"]["alarms"]]


def checked(vanished: set[int], steps: int) -> tuple[list[int], list[int]]:
    """The steps that were checked, and those of alarms, where the gradients have vanished in some steps."""
    one, found = Guard("warn", remembers=True, rank=1), []
    for step in range(steps):
        if one.due(step, sparse=True):
            found.append(step)
            one.note((1.0, 1e-6 if step in vanished else 1.0, 0.1, 0.0))
        one.follow(step, finite=True)
        one.clear()
    return found, [alarm["step"] for alarm in one.stats()["guard"]["alarms"]]


def test_one_batch_without_gradients_is_no_alarm_but_looked_at_closely() -> None:
    steps, alarms = checked({47}, 47 + LOOK + 2 * EVERY)
    assert not alarms
    assert steps == [15, 31, *range(47, 47 + LOOK + 1, CLOSE), 47 + LOOK + EVERY]


@pytest.mark.parametrize(("second", "told"), [(51, True), (79, True), (47 + LOOK, True), (47 + LOOK + EVERY, False)])
def test_a_second_such_batch_is_an_alarm_where_it_is_not_far_away(second: int, told: bool) -> None:
    """Units that die have gradients still with some batches."""
    assert checked({47, second}, 300)[1] == [second] * told


def test_a_close_look_outlasts_a_resume() -> None:
    def fn(comm: Communicator) -> tuple[list[int], list[int]]:
        def factor(step: int) -> float:
            return 1e-6 if step in (31, 59) else 1.0

        whole, first, second = (averager(comm) for _ in range(3))
        for step in range(70):
            step_of(whole, comm, step, factor(step))
        for step in range(40):
            step_of(first, comm, step, factor(step))
        second.load_state_dict(first.state_dict())
        for step in range(40, 70):
            step_of(second, comm, step, factor(step))
        assert second.state_dict()["guard"] == whole.state_dict()["guard"]
        return alarms_of(whole), alarms_of(second)

    assert run_ranks(2, fn) == [([59], [59])] * 2
