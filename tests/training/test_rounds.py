"""Rounds without torch: lengths, fragments, the outer rule, and meetings of plain arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsewire.codecs.scheme import scheme
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError, PeerError
from sparsewire.training.local import membership, rounds
from sparsewire.training.local.outer import OuterSGD, outer_rule
from sparsewire.training.local.round_schedule import RoundSchedule, split, steps_until
from sparsewire.training.local.rounds import CALLED, DUE, LAST, Plan, Rounds
from sparsewire.training.schedule import SchemeSchedule, Settings


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.data())
def test_fragments_are_whole_tensors_in_order_and_balanced(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    named = {str(place): size for place, size in enumerate(sizes)}
    parts = split(named, count)
    assert len(parts) == count and all(parts)
    assert [name for part in parts for name in part] == list(named)
    largest = max(sum(named[name] for name in part) for part in parts)
    assert largest <= sum(sizes) / count + 2 * max(sizes)


@given(st.integers(1, 500), st.data())
def test_meetings_fill_their_round(length: int, data: st.DataObject) -> None:
    turns = data.draw(st.integers(1, length))
    gaps = [steps_until(length, turn, turns) for turn in range(turns)]
    assert sum(gaps) == length and min(gaps) >= 1 and max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("count", [0, 4])
def test_more_fragments_than_tensors_are_refused(count: int) -> None:
    with pytest.raises(InputError, match="1 … 3 fragments"):
        split(dict.fromkeys("abc", 1), count)


def test_an_outer_rule_goes_round_in_a_circle() -> None:
    rule = outer_rule("sgd(0.7, momentum=0.9, nesterov=true)")
    assert rule == OuterSGD(0.7, 0.9, True) == outer_rule(str(rule)) == outer_rule(rule.to_dict()) == outer_rule(rule)
    assert outer_rule(" sgd ") == OuterSGD()


# --- meetings ---


def make(comm: Communicator, spec: str = "nonzero | values=raw | memory=none", **plan: object) -> Rounds:
    start = {"a": np.arange(6, dtype=np.float32), "b": np.ones(3)}
    settings = Settings(SchemeSchedule(scheme(spec)), dense_below=0)
    kinds = {name: array.dtype.name for name, array in start.items()}
    made = Rounds(comm, settings, Plan(RoundSchedule(2), OuterSGD(), **plan), start, kinds)
    membership.join(made, comm, start, new=True)
    return made


def test_plain_arrays_meet_at_their_mean() -> None:
    def fn(comm: Communicator) -> None:
        mine = make(comm)
        local = {name: mine.given(name) + comm.rank for name in mine.common}
        mine.count()
        assert not mine.due
        mine.count()
        assert mine.due
        visit = mine.visit(local)
        assert mine.hold(visit)
        mine.settle(visit, True)
        np.testing.assert_allclose(mine.common["a"], np.arange(6) + 1)
        np.testing.assert_allclose(mine.common["b"], 2)
        assert (mine.meeting, mine.total, mine.counts.changed) == (1, 2, False)
        assert mine.hold(mine.visit(local, LAST)) is None
        assert mine.meeting == 1

    run_ranks(3, fn)


def test_a_meeting_that_is_cancelled_leaves_its_steps() -> None:
    def fn(comm: Communicator) -> None:
        mine = make(comm)
        mine.count()
        visit = mine.visit({name: mine.given(name) for name in mine.common}, CALLED)
        assert (mine.counts.steps, mine.total) == (0, 1)
        mine.cancel(visit)
        assert (mine.counts.steps, mine.total) == (1, 1)

    run_ranks(1, fn)


def test_an_outer_step_beyond_all_numbers_is_not_made() -> None:
    def fn(comm: Communicator) -> None:
        mine = make(comm)
        mine.count()
        local = {"a": np.full(6, np.float32(3e38)), "b": np.full(3, -1.0)}
        assert mine.hold(mine.visit(local, CALLED))
        before = {name: array.copy() for name, array in mine.common.items()}
        local = {"a": np.full(6, np.float32(-3e38)), "b": np.full(3, 2.0)}
        with np.errstate(over="ignore"):
            assert not mine.hold(mine.visit(local, CALLED))
        assert all(np.array_equal(mine.common[name], array) for name, array in before.items())
        assert (mine.counts.nonfinite, mine.meeting) == (1, 2)

    run_ranks(2, fn)


def test_tensors_that_take_their_mean_know_no_outer_rule() -> None:
    def fn(comm: Communicator) -> None:
        mine = make(comm, plain=frozenset("b"))
        object.__setattr__(mine.plan, "outer", OuterSGD(0.5))
        local = {name: mine.given(name) + 2 for name in mine.common}
        mine.hold(mine.visit(local, DUE))
        np.testing.assert_allclose(mine.common["a"], np.arange(6) + 1)
        np.testing.assert_allclose(mine.common["b"], 3)

    run_ranks(2, fn)


NOISE = [b"", b"\0", b"\x13\0\0", b"\3\0\0", b"\0\0\0\0", b"\0" + b"\xff" * 20]


@pytest.mark.parametrize("noise", NOISE, ids=bytes.hex)
def test_noise_in_place_of_a_ranks_word_is_an_error_that_names_it(noise: bytes) -> None:
    with pytest.raises(PeerError, match="rank 7: "):
        rounds._read(memoryview(noise), 7)


@given(st.binary(max_size=40))
def test_weights_that_cannot_be_read_change_nothing(noise: bytes) -> None:
    def fn(comm: Communicator) -> None:
        mine = make(comm)
        before = {name: array.copy() for name, array in mine.common.items()}
        head = json.dumps({"meeting": 3, "counts": {}, "outer": {}}).encode()
        for told in (noise, head + b"\n" + noise):
            with pytest.raises((ValueError, KeyError, TypeError)):
                membership._unpack(mine, told)
        assert mine.meeting == 0
        assert all(np.array_equal(mine.common[name], array) for name, array in before.items())

    run_ranks(1, fn)
