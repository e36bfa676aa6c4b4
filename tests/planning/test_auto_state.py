"""`auto`: its saved state, its settings and its schedule."""

from __future__ import annotations

import pytest
from auto_world import CODECS, FAST, PLANS, SLOW, World

from sparsewire.codecs.scheme import scheme
from sparsewire.comm import run_ranks
from sparsewire.errors import SchemeError
from sparsewire.planning.auto import ActiveScheme, Auto, AutoSchedule, Controller, Sample, read_auto
from sparsewire.planning.auto.trial import survey
from sparsewire.planning.cost.step import BucketTiming, coding


@pytest.mark.parametrize("stop", [2, 7, 25, 83])
def test_a_saved_controller_goes_on_as_the_one_that_was_not_stopped(stop):
    whole, first, second = (World(SLOW) for _ in range(3))
    first.run(stop)
    whole.run(stop)
    for controller, saved in zip(second.controllers, first.controllers, strict=True):
        controller.load_state_dict(saved.state_dict(), stop)
        assert controller.state_dict() == saved.state_dict()
        controller.samples = saved.samples
    second.step = stop
    assert second.run(100) == whole.run(100)


def test_a_state_of_other_candidates_starts_again(caplog):
    world = World(SLOW, numel=25_000_000)
    world.run(30)
    other = Controller(PLANS[:1], {coding(PLANS[0]): CODECS}, SLOW, 4, ActiveScheme())
    other.load_state_dict(world.controllers[0].state_dict(), 30)
    assert other.choice == 0 and "other candidates" in caplog.text


def test_cold_steps_after_a_load_are_not_trusted():
    world = World(FAST)
    world.run(40)
    for controller in world.controllers:
        controller.load_state_dict(controller.state_dict(), world.step)
    world.factors[0] = 5.0
    world.run(6)
    world.factors[0] = 1.0
    assert set(world.run(50)) == {0} and world.controllers[0].switches == []


@pytest.mark.parametrize("other", [None, "candidates"])
def test_a_running_controller_starts_again_with_a_state_of_another_kind(other):
    world = World(SLOW, numel=25_000_000)
    world.run(40)
    controller, active = world.controllers[0], world.actives[0]
    assert controller.choice != 0
    controller.load_state_dict(None if other is None else {**controller.state_dict(), "methods": ["dense", "x"]}, 5)
    assert controller.choice == 0 and active.scheme is None and controller.next_check == 7 and controller.samples == []


# --- settings ----------------------------------------------------------------------------------------------------


def test_the_text_names_candidates():
    assert len(PLANS) == 4 and {plan.select for plan in PLANS} == {scheme("topk(1%)").select}
    told = read_auto("auto(ratio=5%, margin=20%) | values=raw | exchange=root | memory=dgc(momentum=0.8)")
    assert told.plans == (scheme("topk(5%) | values=raw | exchange=root | memory=dgc(momentum=0.8)"),)
    assert told.margin == 0.2 and read_auto(told) is told
    assert read_auto("topk(1%)") is read_auto({"select": "topk"}) is read_auto(scheme("topk(1%)")) is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: read_auto("auto(ratio=0)"), "ratio"),
        (lambda: read_auto("auto(rate=1%)"), "did you mean 'ratio'"),
        (lambda: read_auto("auto(1%)"), "by name"),
        (lambda: read_auto("auto(margin=much)"), "margin"),
        (lambda: read_auto("auto(margin=-5%)"), "margin"),
        (lambda: read_auto("auto | values=qsdg"), "qsgd"),
        (lambda: read_auto("auto | memory=none | memory=residual"), "twice"),
        (lambda: Auto([]), "one scheme at least"),
        (lambda: Auto("topk(1%)"), "list of schemes"),
        (lambda: Auto([3]), "string, a dict or a Scheme"),
        (lambda: Auto(["topk(1%)", "topk(1%) | memory=none"]), "one memory"),
        (lambda: Auto(["nonzero | exchange=shared(support=mask)"]), "support=mask"),
        (lambda: Auto(["topk(1%)"], margin=True), "margin"),
    ],
)
def test_nonsense_is_refused(make, reason):
    with pytest.raises(SchemeError, match=reason):
        make()


def test_the_active_scheme_is_the_schedule_s():
    auto_schedule = AutoSchedule(PLANS[0], 2, [(4, 0.5)])
    assert auto_schedule.at(9) is None
    auto_schedule.active.scheme = PLANS[1]
    assert auto_schedule.at(1) is None and auto_schedule.at(9) == PLANS[1]
    assert auto_schedule.at(3).select.ratio == 0.5 and auto_schedule.at(3).exchange == PLANS[1].exchange


@pytest.mark.parametrize("transform", ["fft", "dct", "rows(width=16)", "dct(two_dimensional=true)"])
def test_schemes_with_a_transform_can_be_predicted(transform):
    plans = read_auto(f"auto(ratio=5%) | transform={transform}").plans
    found = run_ranks(2, lambda comm: survey(comm, plans, 20_000))
    controller = Controller(plans, found[0], SLOW, 2, ActiveScheme())
    controller.note(1, Sample(0.05, 0.01, 0.02, (BucketTiming(0.0, 20_000, 80_000),)))
    controller.decide(9, controller.report())
    assert len(controller.predictions) == 1 + len(plans) and all(seconds > 0 for seconds in controller.predictions)
