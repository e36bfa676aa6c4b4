"""`attach(model, "auto")` on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_pool import Pool


@pytest.mark.parametrize("dtype", ["", "float64"])
def test_dense_steps_are_plain_ddps_and_go_without_the_comm_thread(ranks: Pool, dtype: str) -> None:
    for found in ranks.play("auto.dense_is_plain", dtype=dtype):
        assert set(found["queued"]) == {0} and found["steps"] == 6
        assert 1 < found["ratio"] < 1.1  # with what the ranks agree on


@pytest.mark.parametrize("settings", [{"kind": "words"}, {"clip_norm": 1e6}])
def test_what_needs_the_averager_goes_through_it(ranks: Pool, settings: dict[str, Any]) -> None:
    for found in ranks.play("auto.dense_is_plain", **settings):
        assert set(found["queued"]) == set(range(6))


def test_a_callback_may_be_of_one_rank_alone(ranks: Pool) -> None:
    assert ranks.play("auto.one_rank_is_told") == [list(range(1, 11)), [], []]


@pytest.mark.parametrize("kind", ["plain", "words", "branches"])
def test_no_switch_loses_anything(ranks: Pool, kind: str) -> None:
    for ways in ranks.play("auto.loses_nothing", kind=kind):
        assert ways[:16] == ["dense"] * 3 + ["sparse"] * 4 + ["dense"] * 3 + ["sparse"] * 6


@pytest.mark.parametrize("stop", [3, 6, 9, 13])
def test_a_resumed_run_is_one_that_was_never_stopped(ranks: Pool, tmp_path: Path, stop: int) -> None:
    ranks.play("auto.resumes_exactly", ranks=2, folder=str(tmp_path), stop=stop)


def test_momentum_in_front_of_the_selection_resumes_as_well(ranks: Pool, tmp_path: Path) -> None:
    ranks.play("auto.resumes_exactly", ranks=2, folder=str(tmp_path), stop=9, scheme="auto | memory=dgc(momentum=0.9)")


@pytest.mark.parametrize("stop", [5, 9])
def test_with_a_gain_too(ranks: Pool, tmp_path: Path, stop: int) -> None:
    scheme = "auto | memory=gain(momentum=0.9)"
    ranks.play("auto.resumes_exactly", ranks=2, folder=str(tmp_path), stop=stop, scheme=scheme)


def test_behind_gain_dense_steps_are_plain_where_the_optimizer_has_the_momentum(ranks: Pool) -> None:
    """Only the first step, compressed ones, and the first dense one after these need the communication thread."""
    for found in ranks.play("auto.momentum_is_the_optimizers", ranks=2, momentum=0.9)[:2]:
        assert found == [0, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17]
    for found in ranks.play("auto.momentum_is_the_optimizers", ranks=2, momentum=0.0)[:2]:
        assert found == list(range(20))


def test_ranks_choose_alike_by_what_they_measure_and_say_so_once(ranks: Pool) -> None:
    answers = ranks.play("auto.chooses_alone")
    choices = {answer[0] for answer in answers}
    assert len(choices) == 1 and choices != {"dense"}
    assert answers[0][1] == answers[1][1] == answers[2][1] and answers[0][1][0]["before"] == "dense"
    assert [answer[2] for answer in answers] == [1, 0, 0]


def test_nonsense_is_refused_by_every_rank(ranks: Pool) -> None:
    ranks.play("auto.refuses")


def test_a_rank_that_leaves_in_a_dense_step_is_named(ranks: Pool) -> None:
    answers = ranks.play("auto.says_who_failed")
    for text in (answers[0], answers[2]):
        assert "rank 1: ValueError: out of patience" in text


@pytest.mark.parametrize("at", [2, 5])
def test_it_may_be_saved_and_detached_in_its_own_callback(ranks: Pool, at: int) -> None:
    for found in ranks.play("auto_ends.ends_in_on_step", at=at):
        assert found == {"attached": False, "told": list(range(1, at + 1))}


@pytest.mark.parametrize("outside", [False, True])
def test_its_state_can_be_saved_after_a_step_that_was_left(ranks: Pool, outside: bool) -> None:
    assert ranks.play("auto_ends.is_left_in_mid_step", ranks=2, outside=outside)[:2] == [[5, 5]] * 2


@pytest.mark.parametrize("checks", [False, True])
def test_a_dense_step_that_a_rank_has_left_is_counted_by_none(ranks: Pool, checks: bool) -> None:
    assert ranks.play("auto_ends.is_left_by_a_rank", checks=checks) == [3, 3, 3]


@pytest.mark.timeout(240)  # ranks of its own to start
def test_a_rank_that_is_killed_in_dense_steps_keeps_nobody_waiting(ranks: Pool, tmp_path: Path) -> None:
    mortals = Pool(tmp_path)
    try:
        told = mortals.play("auto_ends.loses_a_rank", lost=[1])
    finally:
        mortals.close()
    assert max(told[0], told[2]) < 15  # not by the group's timeout


def test_a_schedule_that_fails_at_a_switch_is_told_to_all(ranks: Pool) -> None:
    texts = ranks.play("auto_ends.schedule_fails")
    assert all("ZeroDivisionError" in text for text in texts) and "rank 1" in texts[0]
