"""The guard against divergence: all ranks decide alike, by what they have measured together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from guarded import AFTER, SIZES, SOME, Means, averager, gradients, guard_of, step_of, train
from strategies import MEMORIES, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.training import guard
from sparsewire.training.guard import read_guard
from sparsewire.training.residuals.reshard import reshard
from sparsewire.training.schedule import SchemeSchedule, Settings


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense phases of four steps."""
    monkeypatch.setattr(guard, "DENSE_STEPS", 4)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_ranks_raise_the_alarm_at_once_and_go_dense_for_a_while(memory: str, ranks: int, short: None) -> None:
    if not sw.scheme(f"{SOME} | memory={memory}").memory.buffers:
        pytest.skip("nothing waits")

    def fn(comm: Communicator) -> tuple[list[bool], dict[str, Any]]:
        one = averager(comm, memory)
        sparse = []
        for step in range(AFTER + 8):
            sparse.append(one.scheme is not None)
            step_of(one, gradients(comm, step))
        return sparse, guard_of(one)

    (sparse, found), *others = run_ranks(ranks, fn)
    assert all(other == (sparse, found) for other in others)
    assert [alarm["step"] for alarm in found["alarms"]] == [AFTER] and found["dense_until"] == AFTER + 5
    assert [step for step, yes in enumerate(sparse) if not yes] == list(range(AFTER + 1, AFTER + 5))


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("more", [{}, {"nodes": 2}, {"select_per": "model"}, {"clip_norm": 1e9}], ids=str)
def test_who_only_warns_trains_as_if_nobody_looked(memory: str, more: dict[str, Any]) -> None:
    def fn(comm: Communicator) -> None:
        warns, off = averager(comm, memory, "warn", **more), averager(comm, memory, None, **more)
        for step in range(AFTER + 4):
            a, b = (step_of(one, gradients(comm, step)) for one in (warns, off))
            assert all(same_bits(a[name], b[name]) for name in SIZES)
        mine, theirs = warns.state_dict(), off.state_dict()
        for name, kept in mine["buffers"].items():
            assert all(same_bits(x, theirs["buffers"][name][buffer]) for buffer, x in kept.items())
        assert "guard" not in off.stats()

    run_ranks(4 if more.get("nodes") else 2, fn)


def test_machines_with_several_ranks_decide_alike(short: None) -> None:
    def fn(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, nodes=2)
        train(one, comm, range(AFTER + 3))
        return guard_of(one)

    first, *others = run_ranks(4, fn)
    assert [alarm["step"] for alarm in first["alarms"]] == [AFTER] and all(other == first for other in others)


def test_ranks_with_shards_decide_by_the_norms_of_the_whole(short: None) -> None:
    """The burst is in a shard that other ranks have: this one's own norms are usual ones."""
    asked: list[float] = []

    def whole(norm: float) -> float:
        asked.append(norm)
        return norm if len(asked) != 4 else 1e6 * norm  # the residual's, at the second check

    def fn(comm: Communicator) -> list[int]:
        one = averager(comm, norm=whole)
        train(one, comm, range(AFTER + 3), burst=False)
        return [alarm["step"] for alarm in guard_of(one)["alarms"]]

    assert run_ranks(1, fn) == [[AFTER]] and len(asked) == 6


def test_a_dense_phase_loses_nothing(short: None) -> None:
    """What the ranks were given is what they got and what waits."""

    def fn(comm: Communicator) -> tuple[Means, Means, bool]:
        one, given = averager(comm), {name: np.zeros(size) for name, size in SIZES.items()}
        got = {name: np.zeros(size) for name, size in SIZES.items()}
        for step in range(AFTER + 3):
            x = gradients(comm, step)
            for name, array in x.items():
                given[name] += array / comm.size
            for name, array in step_of(one, x).items():
                got[name] += array
        return given, got, any(buffers["residual"].any() for buffers in one.states.by_name.values())

    ranks = run_ranks(2, fn)
    for name in SIZES:
        total = sum(given[name] for given, _, _ in ranks)
        assert np.allclose(ranks[0][1][name], total, rtol=1e-5, atol=1)  # of about 1e6
        assert not ranks[0][2]


@pytest.mark.parametrize("at", [12, AFTER + 1, AFTER + 3, AFTER + 7])
def test_a_resumed_training_raises_the_same_alarm_and_has_the_same_bits(at: int, short: None) -> None:
    def fn(comm: Communicator) -> None:
        whole, first, second = (averager(comm, "gain") for _ in range(3))
        bits = train(whole, comm, range(AFTER + 10))
        bits_now = train(first, comm, range(at))
        second.load_state_dict(first.state_dict())
        bits_now += train(second, comm, range(at, AFTER + 10))
        assert all(same_bits(a[name], b[name]) for a, b in zip(bits, bits_now, strict=True) for name in SIZES)
        assert guard_of(second)["alarms"] == guard_of(whole)["alarms"] != []
        assert second.state_dict()["guard"] == whole.state_dict()["guard"]

    run_ranks(2, fn)


def test_another_number_of_ranks_goes_on_with_the_phase(short: None) -> None:
    def save(comm: Communicator) -> dict[str, Any]:
        one = averager(comm)
        train(one, comm, range(AFTER + 2))
        return one.state_dict()

    states = reshard(run_ranks(2, save), 3)

    def fn(comm: Communicator) -> list[bool]:
        one = averager(comm)
        one.load_state_dict(states[comm.rank])
        found = []
        for step in range(AFTER + 2, AFTER + 7):
            found.append(one.scheme is None)
            step_of(one, gradients(comm, step))
        return found

    assert run_ranks(3, fn) == [[True, True, True, False, False]] * 3


Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return lambda: [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("action", ["warn", "dense"])
def test_rank_0_says_it_once_and_what_to_do(action: str, lines: Lines, short: None) -> None:
    def fn(comm: Communicator) -> int:
        one = averager(comm, action=action)
        train(one, comm, range(AFTER + 1))
        for step in range(AFTER + 1, 80):
            factor = np.float32(1e12 if step in range(50, 60) else 1)
            step_of(one, {name: factor * x for name, x in gradients(comm, step).items()})
        return len(guard_of(one)["alarms"])

    assert run_ranks(2, fn) == [2 if action == "dense" else 1] * 2
    (line,) = lines()
    assert line.startswith(f"step {AFTER}: ") and "lower learning rate" in line and "coverage=" in line
    assert ("dense" in line.partition(". ")[0]) == (action == "dense")


def test_many_steps_that_are_not_finite_are_said_once(lines: Lines) -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, action="warn")
        for step in range(guard.LOST + 5):
            x = gradients(comm, step)
            x["w"][comm.rank] = np.inf
            step_of(one, x, finite=False)
        assert not guard_of(one)["alarms"]

    run_ranks(2, fn)
    (line,) = lines()
    assert "20 steps in a row were not finite" in line


@pytest.mark.parametrize(
    "state",
    [{"gradient": ["1", 2]}, {"gradient": [float("nan"), 2]}, {"beside": [1.0, -1]}, {"beside": 3}, {"until": 1.5},
     {"close": -1}, {"alarms": [["3", "x"]]}, {"alarms": [[3, 4]]}, {"alarms": 5}],
    ids=str,
)  # fmt: skip
def test_a_state_that_makes_no_sense_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises((InputError, TypeError)):
        read_guard(state)

    def fn(comm: Communicator) -> None:
        one = averager(comm)
        with pytest.raises(InputError):
            one.load_state_dict({**one.state_dict(), "guard": state})

    run_ranks(1, fn)


def test_an_action_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="on_divergence is 'warn', 'dense' or None"):
        Settings(SchemeSchedule(sw.scheme(SOME)), on_divergence="stop")
