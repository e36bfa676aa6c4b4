"""`auto`: the model of a step, and what is measured for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from auto_world import CODECS, FAST, PLANS, SLOW, World

from sparsewire.codecs.scheme import scheme
from sparsewire.comm import run_ranks
from sparsewire.planning.auto import Sample, StepTimer
from sparsewire.planning.auto.rates import Rates
from sparsewire.planning.auto.trial import measure_codecs, measure_network, network_of, probe, probe_size, survey
from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.planning.cost.step import BucketTiming, Codecs, Compute, coding, dense_step, sparse_step


def test_an_exchange_overlaps_with_backward():
    compute, network = (
        Compute(1.0, [BucketTiming(0.0, 10, 40), BucketTiming(0.5, 10, 40), BucketTiming(2.0, 10, 40)]),
        NetworkSpeed(0.0, 0.01),
    )
    assert dense_step(compute, network, 2) == pytest.approx(1 + 2 + 0.4)  # 40 bytes each way: 0.4 s
    assert dense_step(compute, replace(network, byte=0.1), 2) == pytest.approx(1 + 3 * 4)
    assert dense_step(compute.late(), network, 2) == pytest.approx(1 + 2 + 3 * 0.4)
    assert compute.seconds == 3.0 and compute.numel == 30


def test_an_exchange_that_computes_delays_backward_where_no_core_is_to_spare():
    compute, network = (
        Compute(1.0, [BucketTiming(0.0, 10, 40), BucketTiming(2.0, 10, 40)]),
        NetworkSpeed(0.0, 0.01, busy=1.0),
    )
    assert dense_step(compute, network, 2) == pytest.approx(1 + 2 + 0.4)
    assert dense_step(replace(compute, spare=0.0), network, 2) == pytest.approx(1 + 2 + 2 * 0.4)
    assert dense_step(replace(compute, spare=0.5), network, 2) == pytest.approx(1 + 2 + 1.5 * 0.4)
    assert dense_step(replace(compute, spare=0.0), replace(network, busy=0.0), 2) == pytest.approx(1 + 2 + 0.4)
    assert dense_step(compute, network, 2, work=0.1) == pytest.approx(1 + 2 + 0.4 + 1.0)
    plain, busy = (sparse_step(PLANS[0], CODECS, replace(compute, spare=one), network, 2) for one in (1.0, 0.0))
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
    assert run_ranks(2, lambda comm: measure_network(comm, 0.001).byte > 0) == [True, True]
    assert probe_size(8e-7, 4, 0.03) == 1 << 17 and probe_size(1e-8, 4, 0.03) == 2_000_000
    assert network_of(0.75, 2.0, 4000, 4) == NetworkSpeed(0.125, pytest.approx(1.25 / 6000))


def test_the_link_stays_the_same_until_two_probes_running_tell_of_another():
    rates = Rates.of(SLOW)
    rates.bias, rates.matched = 2.0, True
    known, found = 8e-8, 4e-9
    for byte, then in [(3.5e-8, known), (1e-8, known), (4e-8, known), (1e-8, known), (8e-8, known), (1e-9, known),
                       (2e-9, found), (1.7e-9, found), (2.4e-9, found)]:  # fmt: skip
        rates.learn_probe(NetworkSpeed(5e-5, byte))
        assert rates.byte == pytest.approx(then)
    assert rates.probed == 2.4e-9 and not rates.doubt
    again = Rates.of(FAST).loaded(rates.saved())
    assert again == rates


def test_noisy_probes_do_not_set_schemes_against_each_other():
    """The others' predictions move only with what is measured of steps, not with each probe."""
    world = World(SLOW, numel=25_000_000, noise=0.05)
    world.run(40)
    known = world.controllers[0].network
    probed = world._probe
    world._probe = lambda nbytes: tuple(one * world.draw.uniform(0.85, 1.2) for one in probed(nbytes))
    before = len(world.controllers[0].switches)
    world.run(300)
    assert world.controllers[0].network == known and len(world.controllers[0].switches) - before <= 2


def test_what_is_known_of_a_scheme_does_not_depend_on_what_others_compute():
    """Backward takes a third longer while the first scheme computes; that says nothing of the second one's steps."""
    world = World(SLOW, numel=25_000_000)
    sample = world._sample
    world._sample = lambda method: replace(sample(method), rest=0.13 if method == 1 else 0.1)
    world.run(100)
    controller = world.controllers[0]
    assert controller.predictor.histories[1].ratios and controller.predictor.histories[2].ratios
    for method in (1, 2):
        assert controller.predictions[method] == pytest.approx(world.seconds(method), rel=0.02)


@pytest.mark.parametrize("best", range(1, 1 + len(PLANS)))
def test_the_best_of_close_schemes_is_found_from_a_few_noisy_steps(best):
    """Schemes 4 % apart, steps that differ by 3 %, a pause in every fifth: in nearly all trainings, and soon."""
    found = []
    for seed in range(20):
        world = World(SLOW, numel=25_000_000, noise=0.03)
        world.draw = np.random.default_rng(seed)
        base = [world.seconds(method) for method in range(1 + len(PLANS))]
        world.factors[1:] = [
            base[1] * (1 if method == best else 1.04) / base[method] for method in range(1, 1 + len(PLANS))
        ]
        sample = world._sample

        def paused(method, world=world, sample=sample):
            one = sample(method)
            return replace(one, seconds=one.seconds + 5, rest=one.rest + 5) if world.step % 5 == 0 else one

        world._sample = paused
        world.run(40)
        found.append(world.controllers[0].choice == best)
    assert sum(found) >= 16


# --- times -------------------------------------------------------------------------------------------------------


def clock(*ticks: float) -> Callable[[], float]:
    found = iter(ticks)
    return lambda: next(found)


def test_a_step_is_what_lies_between_two_ends():
    times = StepTimer(clock(1.0, 2.0, 3.0, 10.0, 11.0, 12.5, 14.0))
    assert times.begin() is None
    times.bucket(5, 20)
    times.span(times.timer())  # 2.0 … 3.0
    assert times.begin() is None  # it followed none
    times.bucket(5, 20)
    times.bucket(7, 28)
    times.span(10.5)  # … 12.5
    times.span(11.5)  # … 14.0, at the same time in part
    timed = times.begin()
    assert timed is not None and timed.sample() == Sample(
        11.0, 7.0, 3.5, (BucketTiming(0.0, 5, 20), BucketTiming(1.0, 7, 28))
    )
    times.clear()
    assert times.begin() is None and times.take() is None


def test_the_end_of_a_step_on_the_communication_thread_is_noted():
    times = StepTimer(clock(1.0, 4.0, 8.0, 9.0))
    times.begin()
    times.bucket(5, 20)
    times.end(0.0)
    times.begin()
    times.bucket(5, 20)
    times.end(0.7)
    timed = times.take()
    assert timed is not None and timed.sample() == Sample(5.0, 4.0, 0.7, (BucketTiming(0.0, 5, 20),))
    assert times.take() is None and times.begin() is None
