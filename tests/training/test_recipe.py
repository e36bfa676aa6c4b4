"""The recipe chooses what the user leaves open, takes what the user names, and prints as the call that says all."""

from __future__ import annotations

import itertools

import pytest

from sparsewire.codecs.scheme import scheme
from sparsewire.errors import InputError
from sparsewire.training.local.recipe import LocalRecipe
from sparsewire.training.recipe import OptimizerFacts, Recipe
from sparsewire.training.schedule import SchemeSchedule, falling_ratio

SGD = OptimizerFacts("SGD", momentum=0.9)
PLAIN = OptimizerFacts("SGD")
ADAM = OptimizerFacts("AdamW", "adaptive")
MUON = OptimizerFacts("Muon", "muon")
TABLES = OptimizerFacts("SparseAdam", "tables")
LBFGS = OptimizerFacts("LBFGS", refused="it compares gradients; write optimizer=None")


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ([SGD], "topk(ratio=0.02) | memory=gain(momentum=0.9)"),
        (
            [OptimizerFacts("SGD", momentum=0.8, nesterov=True)],
            "topk(ratio=0.02) | memory=gain(momentum=0.8, nesterov=true)",
        ),
        ([PLAIN], "topk(ratio=0.02) | memory=residual"),
        ([ADAM], "topk(ratio=0.02) | memory=residual"),
        ([MUON], "topk(ratio=0.1) | memory=residual"),
        ([MUON, ADAM], "topk(ratio=0.1) | memory=residual"),
        ([SGD, PLAIN], "topk(ratio=0.02) | memory=gain(momentum=0.9)"),
        ([], "topk(ratio=0.02) | memory=residual"),
    ],
)
def test_the_memory_goes_by_the_optimizer(facts: list[OptimizerFacts], text: str) -> None:
    assert Recipe.of(facts, total_steps=1000).scheme == text


@pytest.mark.parametrize(
    ("steps", "coverage", "ratio"),
    [(1000, 20, 0.02), (200, 20, 0.1), (10, 20, 1.0), (1_000_000, 20, 0.001), (1000, 60, 0.06), (None, 20, 0.05)],
)
def test_the_ratio_goes_by_coverage(steps: int | None, coverage: float, ratio: float) -> None:
    found = Recipe.of([SGD], total_steps=steps, coverage=coverage)
    assert found.ratio == ratio and scheme(found.scheme).select.ratio == ratio
    assert found.select_per == "parameter" and found.ratio_schedule is None


def test_adams_ratio_falls_over_one_threshold_and_stays_where_it_ends() -> None:
    found = Recipe.of([ADAM], total_steps=1000)
    assert found.select_per == "model" and found.ratio_schedule == falling_ratio(1000, 0.02)
    schedule = SchemeSchedule(scheme(found.scheme), 0, found.ratio_schedule)
    ratios = [schedule.at(step).select.ratio for step in (0, 500, 1000, 5000, 10**9)]
    assert ratios[0] > ratios[1] > ratios[2] == ratios[3] == ratios[4] > 0
    mean = sum(schedule.at(step).select.ratio for step in range(1000)) / 1000
    assert mean == pytest.approx(0.02, rel=0.02)
    without = Recipe.of([ADAM])
    assert (without.select_per, without.ratio_schedule, without.ratio) == ("model", None, 0.05)
    assert Recipe.of([ADAM], total_steps=15).ratio_schedule is None, "everything is sent"
    beside = Recipe.of([ADAM, TABLES], total_steps=1000)
    assert beside.ratio_schedule and not Recipe.of([ADAM, MUON], total_steps=100).ratio_schedule


@pytest.mark.parametrize(
    ("spec", "fixed", "text"),
    [
        ("topk(1%)", {}, "topk(1%) | memory=gain(momentum=0.9)"),
        ("topk", {"total_steps": 1000}, "topk(ratio=0.02) | memory=gain(momentum=0.9)"),
        ("topk", {}, "topk | memory=gain(momentum=0.9)"),
        ("topk | memory=gmc", {"total_steps": 1000}, "topk(ratio=0.02) | memory=gmc"),
        ("topk(1%) | memory=gmc", {"total_steps": 1000}, "topk(1%) | memory=gmc"),
        ("values=raw", {"total_steps": 1000}, "values=raw | memory=gain(momentum=0.9)"),
        ("auto", {"total_steps": 1000}, "auto(ratio=0.02) | memory=gain(momentum=0.9)"),
        ("auto(margin=1%)", {"ratio": 0.3}, "auto(ratio=0.3, margin=1%) | memory=gain(momentum=0.9)"),
        ("auto(ratio=3%) | values=raw", {}, "auto(ratio=3%) | values=raw | memory=gain(momentum=0.9)"),
        ("deepreduce(ratio=2%)", {"total_steps": 1000}, "deepreduce(ratio=2%)"),
        (None, {"ratio": 0.0123456789}, "topk(ratio=0.0123456789) | memory=gain(momentum=0.9)"),
        (None, {"memory": "gmc", "total_steps": 1000}, "topk(ratio=0.02) | memory=gmc"),
        ({"select": "topk(1%)"}, {}, {"select": "topk(1%)", "memory": "gain(momentum=0.9)"}),
    ],
)
def test_what_the_user_names_stays(spec: object, fixed: dict, text: object) -> None:
    assert Recipe.of([SGD], spec, **fixed).scheme == text


def test_a_scheme_that_names_its_memory_is_taken_as_it_is() -> None:
    whole = scheme("topk(1%)")
    for spec in (whole, "topk(1%) | memory=residual"):
        found = Recipe.of([ADAM], spec, total_steps=1000)
        assert (found.scheme, found.select_per, found.ratio_schedule) == (spec, "parameter", None)
    given = Recipe.of([ADAM], total_steps=1000, select_per="bucket", ratio_schedule=[(10, 0.5)])
    assert given.select_per == "bucket" and given.ratio_schedule == [(10, 0.5)]
    assert Recipe.of([ADAM], "threshold(0.1)").select_per == "parameter", "thresholds have no order to compete in"


@pytest.mark.parametrize(
    ("facts", "fixed", "said"),
    [
        ([SGD], {"total_steps": 0}, "total_steps is the number of optimizer steps"),
        ([SGD], {"total_steps": 10.5}, "total_steps is the number of optimizer steps"),
        ([SGD], {"coverage": 0}, "coverage is a number above 0"),
        ([SGD], {"coverage": float("nan")}, "coverage is a number above 0"),
        ([SGD], {"ratio": 1.5}, "0 < ratio ≤ 1"),
        ([SGD], {"spec": "topk(1%)", "ratio": 0.1}, "leave one out"),
        ([SGD], {"spec": "topk(1%) | memory=gmc", "memory": "dgc"}, "given twice"),
        ([SGD, ADAM], {}, "exclude="),
        ([SGD, OptimizerFacts("SGD", momentum=0.5)], {}, "make them equal"),
        ([MUON], {"ratio": 0.01}, "ratio=0.1"),
        ([MUON], {"spec": "topk(5%)"}, "ratio=0.1"),
        ([MUON], {"spec": "topk(k=5) | memory=residual"}, "ratio=0.1"),
        ([MUON, ADAM], {"spec": "auto"}, "ratio=0.1"),
        ([MUON], {"total_steps": 100, "ratio_schedule": falling_ratio(100, 0.2)}, "ends at"),
        ([LBFGS], {}, "LBFGS: it compares gradients; write optimizer=None"),
        ([LBFGS], {"spec": "topk(1%) | memory=residual"}, "LBFGS: it compares"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(facts: list[OptimizerFacts], fixed: dict, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        Recipe.of(facts, **fixed)


@pytest.mark.parametrize(
    "spec", ["nonzero", "topk(20%)", "topk(ratio=10%) | memory=residual", "topk(1%) | memory=none"]
)
def test_muon_is_served_where_enough_is_sent_or_nothing_is_late(spec: str) -> None:
    assert Recipe.of([MUON], spec).optimizers == (MUON,)


def test_it_prints_as_the_whole_call() -> None:
    assert repr(Recipe.of([ADAM], total_steps=500)) == (
        'attach(model, "topk(ratio=0.04) | memory=residual", optimizer=optimizer, select_per="model", '
        "ratio_schedule=falling_ratio(total_steps=500, mean_ratio=0.04, knee=0.02))"
    )
    assert (
        repr(Recipe.of([], scheme("topk(1%)"))) == 'attach(model, "topk(ratio=0.01) | memory=residual", optimizer=None)'
    )


def test_one_optimizer_with_two_kinds_of_groups_is_one() -> None:
    assert "optimizer=optimizer" in repr(Recipe.of([SGD, PLAIN])) and "optimizer=[…]" in repr(Recipe.of([ADAM, MUON]))


def test_a_printed_call_makes_the_same_recipe() -> None:
    for facts, steps in itertools.product([[SGD], [PLAIN], [ADAM], [MUON]], [None, 50, 5000]):
        first = Recipe.of(facts, total_steps=steps)
        again = Recipe.of(facts, first.scheme, select_per=first.select_per, ratio_schedule=first.ratio_schedule)
        assert repr(again) == repr(first)


def test_its_line_says_what_total_steps_would_gain() -> None:
    assert "with total_steps= the ratio would go by the run's length: 20/total_steps" in Recipe.of([SGD]).text()
    text = Recipe.of([SGD], total_steps=1000).text()
    assert text.startswith("for SGD(momentum=0.9): attach(model") and "coverage 20" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("steps", "every", "ratio"),
    [
        (1000, 10, 0.05),
        (1001, 10, 0.0495),
        (2000, 1, 0.0025),
        (None, 10, 0.05),
        (30, 10, 1.0),
        (100, [(2, 10), (4, 40)], 1.0),
    ],
)
def test_local_steps_are_covered_by_their_rounds(steps: int | None, every: object, ratio: float) -> None:
    found = scheme(LocalRecipe.of(None, every, steps).scheme)
    assert found.select.ratio == ratio and str(found.memory) == "residual(decay=0.95)"
    assert found.exchange.mean == "sqrt"


def test_the_recipe_of_local_steps_is_the_call_and_says_why() -> None:
    whole = LocalRecipe.of(None, 10, 1000)
    scheme = "topk(ratio=0.05) | memory=residual(decay=0.95) | exchange=allgather(mean=sqrt)"
    assert repr(whole) == f'local_steps(model, optimizer, "{scheme}", every=10)'
    assert whole.text() == f"{whole!r}; coverage 5: how often each coordinate is sent in 100 rounds"
    later = "; with total_steps= the ratio would go by the run's length: 5/rounds"
    assert LocalRecipe.of(None, 10).text().endswith(later)
    given = LocalRecipe.of("sbc(level=2)", lambda round_: 10)
    assert given.text() == repr(given) == 'local_steps(model, optimizer, "sbc(level=2)", every=…)'
    for wrong in ({"total_steps": 0}, {"coverage": -1.0}):
        with pytest.raises(InputError):
            LocalRecipe.of(None, 10, **wrong)
