"""Which scheme a step has: dense at first, then ratio by ratio, then the scheme's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sparsewire as sw
from sparsewire.errors import SchemeError
from sparsewire.training.schedule import SchemeSchedule, dgc_schedule, theta_schedule, warmup_ratio


def ratios(schedule: SchemeSchedule, steps: int) -> list[Any]:
    return [None if (s := schedule.at(step)) is None else s.select.ratio for step in range(steps)]


def test_pairs_follow_the_warm_up_and_the_schemes_own_ratio_follows_them() -> None:
    schedule = SchemeSchedule(sw.scheme("topk(1%)"), 2, dgc_schedule(2, stages=2))
    assert ratios(schedule, 8) == [None, None, 0.25, 0.25, 0.0625, 0.0625, 0.01, 0.01]


own_ratios = st.floats(1e-6, 1.0, exclude_min=True)


@given(own_ratios, st.integers(1, 9), st.integers(0, 6), st.floats(0.01, 1.0), st.floats(0.1, 1.0))
def test_stages_fall_to_the_schemes_own_ratio_and_never_below(
    own: float, steps: int, stages: int, start: float, factor: float
) -> None:
    found = ratios(
        SchemeSchedule(sw.scheme(f"topk(ratio={own:.17f})"), 0, dgc_schedule(steps, stages, start, factor)), 60
    )
    assert found == sorted(found, reverse=True)
    assert found[-1] == min(found) and found[0] == (max(found[-1], start) if stages else found[-1])


@given(own_ratios, st.integers(1, 60), own_ratios)
def test_a_warm_up_without_stages_falls_from_start_to_ratio(one: float, steps: int, other: float) -> None:
    ratio, start = sorted((one, other))
    found = ratios(SchemeSchedule(sw.scheme("topk(1%)"), 0, warmup_ratio(steps, ratio, start)), steps + 9)
    assert found == sorted(found, reverse=True)
    assert found[0] == start and found[steps:] == [ratio] * 9
    assert ratio == start or found[0] > found[steps]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((0, 0.01), "steps is a whole number above 0, not 0"),
        ((10, 0), "ratio 0; a ratio lies in"),
        ((10, 0.01, 1.5), "start 1.5; a ratio lies in"),
        ((10, 0.5, 0.25), "but 0.25 is below 0.5"),
    ],
)
def test_a_warm_up_that_cannot_fall_is_refused(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(SchemeError, match=words):
        warmup_ratio(*given)


def test_a_function_counts_from_the_end_of_the_warm_up() -> None:
    schedule = SchemeSchedule(sw.scheme("topk(1%)"), 1, lambda step: None if step > 1 else 0.5 / (step + 1))
    assert ratios(schedule, 4) == [None, 0.5, 0.25, 0.01]


def test_a_ratio_takes_the_place_of_a_count() -> None:
    schedule = SchemeSchedule(sw.scheme("topk(k=5)"), 0, [(1, 0.5)])
    assert [str(schedule.at(step).select) for step in range(2)] == ["topk(ratio=0.5)", "topk(k=5)"]


WRONG = [
    ({"warmup_steps": True}, "warmup_steps is a whole number"),
    ({"ratios": 0.1}, "function of the step or"),
    ({"ratios": [0.1, 0.2]}, "function of the step or"),
    ({"ratios": [(5, 0.1), (5, 0.2)]}, "5 follows 5"),
    ({"ratios": [(0, 0.1)]}, "0 follows 0"),
    ({"ratios": [(2.5, 0.1)]}, "2.5 follows 0"),
    ({"ratios": [(5, float("nan"))]}, "until 5 has nan"),
    ({"ratios": [(5, True)]}, "until 5 has True"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG)
def test_a_wrong_schedule_is_refused_when_it_is_made(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemeError, match=words):
        SchemeSchedule(sw.scheme("topk(1%)"), **settings)


def test_what_a_function_does_later_is_named_by_its_step() -> None:
    schedule = SchemeSchedule(sw.scheme("topk(1%)"), 3, lambda step: 0.1 if step < 2 else 1 / (step - 2))
    with pytest.raises(SchemeError, match=r"ratio_schedule\(2\) raised ZeroDivisionError"):
        schedule.at(5)


@pytest.mark.parametrize(
    ("thetas", "words"),
    [
        ([(10, 0.5), (5, 0.4)], "theta_schedule: steps are whole numbers that ascend, but 5 follows 10"),
        ([0.5], r"theta_schedule is a function of the step or \(until, θ\) pairs"),
        ([(10, 1.0)], "0 ≤ θ < 1"),
        ([], "at least one pair"),
    ],
)
def test_a_wrong_theta_is_refused_in_its_own_words(thetas: Any, words: str) -> None:
    with pytest.raises(SchemeError, match=words):
        theta_schedule(thetas)
