"""`auto`: what it decides from what it is told, on a link and machine that are made up; nothing here is timed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sparsewire.codecs.scheme import scheme
from sparsewire.comm import run_ranks
from sparsewire.errors import SchemeError
from sparsewire.planning.auto import Auto, Pilot, Sample, Steered, Times, Wheel, read_auto
from sparsewire.planning.auto.rates import Rates
from sparsewire.planning.auto.trial import link_of, measure_codecs, measure_link, probe, probe_size, survey
from sparsewire.planning.cost.coded import Speeds
from sparsewire.planning.cost.model import Link
from sparsewire.planning.cost.step import Codecs, Compute, Part, coding, dense_step, sparse_step
from sparsewire.planning.cost.volume import all_reduce

FAST, SLOW = Link(5e-5, 2e-10), Link(5e-5, 8e-8)  # not limited; 100 Mbit/s
SPEEDS = Speeds(3e-9, 3e-9, 2e-5, 5e-5, 1e-8, 1e-8, 2e-9, 2e-9, 1e-8, 1e-9, 0.0)
CODECS = Codecs(2e-9, 1e-9, 1.0, 0.01, SPEEDS)
READY = (0.0, 0.004, 0.008)
PLANS = read_auto("auto").plans


class World:
    """Ranks whose steps take what the model says, times what they really take: `factors`, by way; and some noise."""

    def __init__(self, link: Link, numel: int = 1_000_000, size: int = 4, noise: float = 0.0, **settings):
        self.link, self.size, self.noise, self.step = link, size, noise, 0
        self.factors = [1.0] * (1 + len(PLANS))
        self.parts = tuple(Part(at, numel // 3, 4 * numel // 3) for at in READY)
        self.draw = np.random.default_rng(0)
        self.wheels = [Wheel() for _ in range(2)]
        codecs = dict.fromkeys(map(coding, PLANS), CODECS)
        self.pilots = [Pilot(PLANS, codecs, link, size, wheel, **settings) for wheel in self.wheels]
        self.choices: list[int] = []
        self.probes: list[int] = []

    def seconds(self, way: int) -> float:
        compute, plan = Compute(0.01, self.parts), self.pilots[0].ways[way]
        if plan is None:
            return self.factors[0] * dense_step(compute, self.link, self.size)
        return self.factors[way] * sparse_step(plan, CODECS, compute, self.link, self.size)

    def run(self, steps: int) -> list[int]:
        """The ways of so many steps; what two ranks measure differs, what they decide does not."""
        for _ in range(steps):
            way = self.pilots[0].choice
            assert (
                self.pilots[1].choice == way and self.wheels[0].plan == self.wheels[1].plan == self.pilots[0].ways[way]
            )
            for pilot in self.pilots if way else ():  # on the communication thread, a step ends when ranks agree
                pilot.note(self.step, self._sample(way))
            nbytes = self.pilots[0].probe_bytes(self.step)
            if self.pilots[0].due(self.step):
                reports = [pilot.report(self._probe(nbytes) if nbytes else (0.0, 0.0)) for pilot in self.pilots]
                for pilot in self.pilots:
                    pilot.decide(self.step, np.max(reports, axis=0), nbytes)
                self.probes += [self.step] * bool(nbytes)
            for pilot in () if way else self.pilots:
                pilot.note(self.step, self._sample(way))
            self.choices.append(way)
            self.step += 1
        return self.choices[-steps:]

    def _sample(self, way: int) -> Sample:
        seconds = self.seconds(way) * (1 + self.noise * float(self.draw.uniform(-1, 1)))
        moved = [all_reduce(part.nbytes, self.size) for part in self.parts]
        busy = sum(self.link.latency * one.rounds + self.link.byte * one.sent for one in moved)
        return Sample(seconds, 0.01, busy if way == 0 else 0.0, self.parts)

    def _probe(self, nbytes: int) -> tuple[float, float]:
        small, moved = 2 * (self.size - 1) * self.link.latency, all_reduce(nbytes, self.size)
        return small, small + self.link.byte * moved.sent * (1 + self.noise * float(self.draw.uniform(-1, 1)))


def best(world: World) -> float:
    return min(world.seconds(way) for way in range(1 + len(PLANS)))


# --- decisions ---------------------------------------------------------------------------------------------------


def test_dense_stays_where_it_is_fastest_and_no_probe_is_made():
    world = World(FAST)
    assert world.seconds(0) == best(world)
    assert world.run(200) == [0] * 200
    assert world.probes == [] and world.pilots[0].switches == []


def test_short_first_steps_are_not_trusted():
    world = World(FAST)
    world.factors[0] = 5.0  # caches are cold, buckets are not yet in order
    assert world.run(4) == [0] * 4
    world.factors[0] = 1.0
    assert world.run(100) == [0] * 100


def test_dense_is_tried_again_where_it_may_be_faster():
    world = World(FAST)
    world.factors = [1.5, *[0.8] * len(PLANS)]
    assert all(world.run(30)[15:]) and best(world) < world.seconds(0)
    world.factors = [1.0, *[1.25 * world.seconds(0) / world.seconds(1)] * len(PLANS)]
    assert set(world.run(200)[100:]) == {0}


def test_a_slow_link_is_compressed_within_20_steps_by_the_best_scheme():
    world = World(SLOW, numel=25_000_000)
    world.factors = [1.0, 1.6, 2.0, 1.1, 1.9]
    ways = world.run(40)
    assert ways[:3] == [0, 0, 0] and 0 not in ways[3:]
    assert world.seconds(ways[20]) == best(world) and set(ways[20:]) == {ways[20]}
    assert set(ways[3:20]) > {ways[20]}  # those predicted to be about as fast were tried


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_rate_that_falls_and_rises_is_followed(noise):
    world = World(FAST, noise=noise)
    assert set(world.run(60)) == {0}
    world.link = SLOW
    ways = world.run(100)
    assert all(ways[20:])
    assert world.seconds(ways[-1]) < 1.05 * best(world)
    world.link = FAST
    ways = world.run(150)
    assert set(ways[50:]) == {0}


def test_what_was_learned_on_a_slow_link_does_not_keep_dense_away_on_a_fast_one():
    """Where the link is fast schemes take 20 ms more than modelled, where it is slow none, as their work shows."""
    fast = Link(5e-5, 3e-9)
    for seed in range(10):
        world = World(fast, noise=0.05)
        world.draw, modelled = np.random.default_rng(seed), world.seconds
        world.seconds = lambda way, world=world, modelled=modelled: (
            modelled(way) + 0.02 * (way > 0 and world.link is fast)
        )
        world.run(150)
        world.link = SLOW
        assert all(world.run(150)[20:])
        world.link = fast
        assert set(world.run(70)[50:]) == {0}


@pytest.mark.parametrize("link", [FAST, Link(5e-5, 2e-9), Link(5e-5, 4e-9), Link(5e-5, 8e-9), SLOW])
def test_noise_makes_it_switch_rarely(link):
    world = World(link, noise=0.2)
    world.run(60)
    settled = len(world.pilots[0].switches)
    world.run(1000)
    assert len(world.pilots[0].switches) - settled <= 12
    share = sum(world.seconds(way) for way in world.choices[60:]) / (1000 * best(world))
    assert share < 1.1


def test_a_scheme_that_turns_out_slower_than_predicted_is_left_and_not_tried_again():
    world = World(Link(5e-5, 4e-9), numel=25_000_000)
    assert 2 * min(map(world.seconds, range(1, 5))) < world.seconds(0)
    world.factors[1:] = [8.0] * len(PLANS)
    assert best(world) == world.seconds(0)
    ways = world.run(200)
    assert any(ways[:20]) and set(ways[40:]) == {0}
    assert world.pilots[0].stats()["choice"] == "dense" and "faster" in world.pilots[0].reason


def test_probes_take_a_small_share_of_the_time():
    world = World(SLOW)
    world.run(400)
    steps = np.diff(world.probes[3:])
    assert steps.min() >= 10 and steps.max() <= 40
    spent = sum(2 * sum(world._probe(world.pilots[0].probe_bytes(10**9))) for _ in world.probes[3:])
    assert spent < 0.06 * 400 * world.seconds(world.choices[-1])


def test_probes_take_a_small_share_of_the_time_on_the_slowest_links_as_well():
    world = World(Link(5e-5, 8e-6))  # 1 Mbit/s: the least probe takes longer than many steps
    world.run(100)
    spent, ways = 0.0, []
    for _ in range(1000):
        nbytes, before = world.pilots[0].probe_bytes(world.step), len(world.probes)
        ways += world.run(1)
        spent += 3 * sum(world._probe(nbytes)) * (len(world.probes) - before)
    assert 0 < spent < 0.12 * sum(map(world.seconds, ways))


def test_a_probe_that_is_wrong_once_moves_nothing():
    world = World(SLOW)
    world.run(60)
    wrong, world._probe = world._probe, lambda nbytes: (3e-4, 3.1e-4)
    while not world.probes or world.probes[-1] < 60:
        world.run(1)
    world._probe = wrong
    assert all(world.run(60))


def test_ranks_whose_tables_have_gradients_of_other_sizes_decide_alike():
    world, (one, other) = World(Link(5e-5, 2e-9)), (Part(0.0, size, 4 * size) for size in (1 << 14, 1 << 22))
    for pilot, part in zip(world.pilots, (one, other), strict=True):
        note = pilot.note
        pilot.note = lambda step, sample, note=note, part=part: note(step, replace(sample, parts=(part, *sample.parts)))
    for _ in range(60):
        world.run(1)
        assert world.pilots[0].state_dict() == world.pilots[1].state_dict()
        assert world.pilots[0].predictions == world.pilots[1].predictions


def test_dense_steps_that_are_all_timed_count_as_much_as_compressed_ones():
    """Dense steps on the communication thread are all timed: once, the shortest of them was set against usual ones."""
    for seed in range(10):
        world = World(SLOW, noise=0.1)
        world.draw = np.random.default_rng(seed)
        world.factors[1:] = [0.93 * world.seconds(0) / world.seconds(way) for way in range(1, 1 + len(PLANS))]
        world.run(400)
        assert world.choices[200:].count(0) < 50


def test_only_the_last_switches_are_remembered():
    world = World(SLOW, numel=25_000_000)
    world.run(10)
    pilot = world.pilots[0]
    for step in range(1000):
        pilot._switch(step, step % 2, "is tested")
    assert [one["step"] for one in pilot.stats()["switches"]] == list(range(900, 1000))
    assert len(pilot.state_dict()["switches"]) == 100


def test_no_scheme_before_the_warm_up_ends():
    world = World(SLOW, first=30)
    ways = world.run(40)
    assert set(ways[:30]) == {0} and all(ways[31:])


def test_schemes_that_wait_for_the_last_bucket_are_predicted_so():
    early, late = World(SLOW, numel=25_000_000), World(SLOW, numel=25_000_000, late=True)
    for world in (early, late):
        world.run(4)
    assert late.pilots[0].predictions[1] > early.pilots[0].predictions[1]


def test_switches_are_logged_once_and_told(caplog):
    with caplog.at_level(logging.INFO, "sparsewire"):
        world = World(SLOW, numel=25_000_000)
        world.pilots[0]._speaks = True
        world.run(40)
    told = world.pilots[0].stats()
    assert len(caplog.records) == len(told["switches"]) >= 1
    first = told["switches"][0]
    assert (first["step"], first["before"]) == (3, "dense") and "ms" in first["reason"]
    assert told["choice"] == world.wheels[0].plan.brief and told["predictions"]["dense"] > told["step"]
    assert told["rate"] == pytest.approx(1e8, rel=0.1) and told["compute"] == pytest.approx(0.018)
    assert told["codecs"][told["choice"]] == pytest.approx(3e-9 * 25e6, rel=1e-3)


@pytest.mark.parametrize("stop", [2, 7, 25, 83])
def test_a_saved_pilot_goes_on_as_the_one_that_was_not_stopped(stop):
    whole, first, second = (World(SLOW) for _ in range(3))
    first.run(stop)
    whole.run(stop)
    for pilot, saved in zip(second.pilots, first.pilots, strict=True):
        pilot.load_state_dict(saved.state_dict(), stop)
        assert pilot.state_dict() == saved.state_dict()
        pilot.samples = saved.samples
    second.step = stop
    assert second.run(100) == whole.run(100)


def test_a_state_of_other_candidates_starts_again(caplog):
    world = World(SLOW, numel=25_000_000)
    world.run(30)
    other = Pilot(PLANS[:1], {coding(PLANS[0]): CODECS}, SLOW, 4, Wheel())
    other.load_state_dict(world.pilots[0].state_dict(), 30)
    assert other.choice == 0 and "other candidates" in caplog.text


# --- the model of a step -----------------------------------------------------------------------------------------


def test_an_exchange_overlaps_with_backward():
    compute, link = Compute(1.0, [Part(0.0, 10, 40), Part(0.5, 10, 40), Part(2.0, 10, 40)]), Link(0.0, 0.01)
    assert dense_step(compute, link, 2) == pytest.approx(1 + 2 + 0.4)  # 40 bytes each way: 0.4 s
    assert dense_step(compute, replace(link, byte=0.1), 2) == pytest.approx(1 + 3 * 4)
    assert dense_step(compute.late(), link, 2) == pytest.approx(1 + 2 + 3 * 0.4)
    assert compute.seconds == 3.0 and compute.numel == 30


def test_an_exchange_that_computes_delays_backward_where_no_core_is_to_spare():
    compute, link = Compute(1.0, [Part(0.0, 10, 40), Part(2.0, 10, 40)]), Link(0.0, 0.01, busy=1.0)
    assert dense_step(compute, link, 2) == pytest.approx(1 + 2 + 0.4)
    assert dense_step(replace(compute, spare=0.0), link, 2) == pytest.approx(1 + 2 + 2 * 0.4)
    assert dense_step(replace(compute, spare=0.5), link, 2) == pytest.approx(1 + 2 + 1.5 * 0.4)
    assert dense_step(replace(compute, spare=0.0), replace(link, busy=0.0), 2) == pytest.approx(1 + 2 + 0.4)
    assert dense_step(compute, link, 2, work=0.1) == pytest.approx(1 + 2 + 0.4 + 1.0)
    plain, busy = (sparse_step(PLANS[0], CODECS, replace(compute, spare=one), link, 2) for one in (1.0, 0.0))
    assert plain < busy


def test_codecs_are_measured_and_agreed_on():
    plans = [scheme("topk(5%)"), scheme("topk(5%) | exchange=reduce_scatter"), scheme("topk(2%) | values=raw")]
    codecs = measure_codecs(plans[0], 20_000)
    assert codecs.density == pytest.approx(0.05, rel=0.01) and codecs.front > 0 < codecs.back and codecs.sharing >= 1
    assert Codecs.of(codecs.numbers) == codecs
    found = run_ranks(2, lambda comm: survey(comm, plans, 5000))
    assert found[0] == found[1] and set(found[0]) == {coding(plans[0]), coding(plans[2])}


def test_a_probe_tells_latency_and_rate():
    spent = [5.0, 0.2, 0.5, 2.0, 0.7, 3.0]  # the first waits for others, the second finds a full token bucket
    ticks = iter(np.cumsum([tick for one in spent for tick in (0.0, one)]).tolist())
    small, large = run_ranks(1, lambda comm: probe(comm, 4000, timer=lambda: next(ticks)))[0]
    assert (small, large) == (0.5, 2.0)
    assert run_ranks(2, lambda comm: measure_link(comm, 0.001).byte > 0) == [True, True]
    assert probe_size(8e-7, 4, 0.03) == 1 << 17 and probe_size(1e-8, 4, 0.03) == 2_000_000
    assert link_of(0.75, 2.0, 4000, 4) == Link(0.125, pytest.approx(1.25 / 6000))


def test_the_link_stays_the_same_until_two_probes_running_tell_of_another():
    rates = Rates.of(SLOW)
    rates.bias, rates.matched = 2.0, True
    known, found = 8e-8, 4e-9
    for byte, then in [(3.5e-8, known), (1e-8, known), (4e-8, known), (1e-8, known), (8e-8, known), (1e-9, known),
                       (2e-9, found), (1.7e-9, found), (2.4e-9, found)]:  # fmt: skip
        rates.learn_probe(Link(5e-5, byte))
        assert rates.byte == pytest.approx(then)
    assert rates.probed == 2.4e-9 and not rates.doubt
    again = Rates.of(FAST).loaded(rates.saved())
    assert again == rates


def test_noisy_probes_do_not_set_schemes_against_each_other():
    """The others' predictions move only with what is measured of steps, not with each probe."""
    world = World(SLOW, numel=25_000_000, noise=0.05)
    world.run(40)
    known = world.pilots[0].link
    probed = world._probe
    world._probe = lambda nbytes: tuple(one * world.draw.uniform(0.85, 1.2) for one in probed(nbytes))
    before = len(world.pilots[0].switches)
    world.run(300)
    assert world.pilots[0].link == known and len(world.pilots[0].switches) - before <= 2


def test_what_is_known_of_a_scheme_does_not_depend_on_what_others_compute():
    """Backward takes a third longer while the first scheme computes; that says nothing of the second one's steps."""
    world = World(SLOW, numel=25_000_000)
    sample = world._sample
    world._sample = lambda way: replace(sample(way), rest=0.13 if way == 1 else 0.1)
    world.run(100)
    pilot = world.pilots[0]
    assert pilot.known[1].ratios and pilot.known[2].ratios
    for way in (1, 2):
        assert pilot.predictions[way] == pytest.approx(world.seconds(way), rel=0.02)


@pytest.mark.parametrize("best", range(1, 1 + len(PLANS)))
def test_the_best_of_close_schemes_is_found_from_a_few_noisy_steps(best):
    """Schemes 4 % apart, steps that differ by 3 %, a pause in every fifth: in nearly all trainings, and soon."""
    found = []
    for seed in range(20):
        world = World(SLOW, numel=25_000_000, noise=0.03)
        world.draw = np.random.default_rng(seed)
        base = [world.seconds(way) for way in range(1 + len(PLANS))]
        world.factors[1:] = [base[1] * (1 if way == best else 1.04) / base[way] for way in range(1, 1 + len(PLANS))]
        sample = world._sample

        def paused(way, world=world, sample=sample):
            one = sample(way)
            return replace(one, seconds=one.seconds + 5, rest=one.rest + 5) if world.step % 5 == 0 else one

        world._sample = paused
        world.run(40)
        found.append(world.pilots[0].choice == best)
    assert sum(found) >= 16


# --- times -------------------------------------------------------------------------------------------------------


def clock(*ticks: float) -> Callable[[], float]:
    found = iter(ticks)
    return lambda: next(found)


def test_a_step_is_what_lies_between_two_ends():
    times = Times(clock(1.0, 2.0, 3.0, 10.0, 11.0, 12.5, 14.0))
    assert times.begin() is None
    times.bucket(5, 20)
    times.span(times.timer())  # 2.0 … 3.0
    assert times.begin() is None  # it followed none
    times.bucket(5, 20)
    times.bucket(7, 28)
    times.span(10.5)  # … 12.5
    times.span(11.5)  # … 14.0, at the same time in part
    sample = times.begin()
    assert sample == Sample(11.0, 7.0, 3.5, (Part(0.0, 5, 20), Part(1.0, 7, 28)))
    times.clear()
    assert times.begin() is None and times.take() is None


def test_on_the_communication_thread_the_end_is_told():
    times = Times(clock(1.0, 4.0, 8.0, 9.0))
    times.begin()
    times.bucket(5, 20)
    times.end(0.0)
    times.begin()
    times.bucket(5, 20)
    times.end(0.7)
    assert times.take() == Sample(5.0, 4.0, 0.7, (Part(0.0, 5, 20),))
    assert times.take() is None and times.begin() is None


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


def test_a_wheel_steers_a_schedule():
    steered = Steered(PLANS[0], 2, [(4, 0.5)])
    assert steered.at(9) is None
    steered.wheel.plan = PLANS[1]
    assert steered.at(1) is None and steered.at(9) == PLANS[1]
    assert steered.at(3).select.ratio == 0.5 and steered.at(3).exchange == PLANS[1].exchange


@pytest.mark.parametrize("transform", ["fft", "dct", "rows(width=16)", "dct(two_dimensional=true)"])
def test_schemes_with_a_transform_can_be_predicted(transform):
    plans = read_auto(f"auto(ratio=5%) | transform={transform}").plans
    found = run_ranks(2, lambda comm: survey(comm, plans, 20_000))
    pilot = Pilot(plans, found[0], SLOW, 2, Wheel())
    pilot.note(1, Sample(0.05, 0.01, 0.02, (Part(0.0, 20_000, 80_000),)))
    pilot.decide(9, pilot.report())
    assert len(pilot.predictions) == 1 + len(plans) and all(seconds > 0 for seconds in pilot.predictions)


@pytest.mark.parametrize("numel", [1_000_000, 25_000_000])
@pytest.mark.parametrize("length", [5, 8, 12])
def test_after_a_short_congestion_dense_returns(numel, length):
    """Only the step before a check times its exchanges, so it may see another rate than those that it stands for."""
    for phase in range(8):
        world = World(FAST, numel=numel)
        sample = world._sample

        def timed(way, world=world, sample=sample):
            pilot = world.pilots[0]
            is_timed = pilot.due(world.step + 1) and not pilot.due(world.step)
            return replace(sample(way), **({} if is_timed else {"busy": 0.0}))

        world._sample = timed
        world.run(40 + phase)
        world.link = replace(FAST, byte=100 * FAST.byte)
        world.run(length)
        world.link = FAST
        assert set(world.run(100)[50:]) == {0}


def test_dense_is_tried_now_and_then_whatever_is_predicted():
    world = World(SLOW, numel=25_000_000)
    world.run(40)
    for pilot in world.pilots:
        pilot.known[0].ratios = [3.0]  # a mistake
    world.link, world.pilots[0].rates.bias, world.pilots[1].rates.bias = FAST, 5.0, 5.0
    world.factors = [1.0, *[30.0] * len(PLANS)]
    assert set(world.run(4000)[-100:]) == {0}


def test_cold_steps_after_a_load_are_not_trusted():
    world = World(FAST)
    world.run(40)
    for pilot in world.pilots:
        pilot.load_state_dict(pilot.state_dict(), world.step)
    world.factors[0] = 5.0
    world.run(6)
    world.factors[0] = 1.0
    assert set(world.run(50)) == {0} and world.pilots[0].switches == []


@pytest.mark.parametrize("other", [None, "candidates"])
def test_a_running_pilot_starts_again_with_a_state_of_another_kind(other):
    world = World(SLOW, numel=25_000_000)
    world.run(40)
    pilot, wheel = world.pilots[0], world.wheels[0]
    assert pilot.choice != 0
    pilot.load_state_dict(None if other is None else {**pilot.state_dict(), "ways": ["dense", "x"]}, 5)
    assert pilot.choice == 0 and wheel.plan is None and pilot.next_check == 7 and pilot.samples == []


def test_why_it_stays_dense_is_said():
    world = World(FAST)
    world.run(30)
    assert world.pilots[0].stats()["reason"] == "no scheme is faster by the margin"
