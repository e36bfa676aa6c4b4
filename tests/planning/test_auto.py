"""`auto`: what it decides from measurements, on a network and machine that are made up; nothing here is timed."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from auto_world import FAST, PLANS, SLOW, World, best

from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.planning.cost.step import BucketTiming


def test_dense_stays_where_it_is_fastest_and_no_probe_is_made():
    world = World(FAST)
    assert world.seconds(0) == best(world)
    assert world.run(200) == [0] * 200
    assert world.probes == [] and world.controllers[0].switches == []


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
    methods = world.run(40)
    assert methods[:3] == [0, 0, 0] and 0 not in methods[3:]
    assert world.seconds(methods[20]) == best(world) and set(methods[20:]) == {methods[20]}
    assert set(methods[3:20]) > {methods[20]}  # those predicted to be about as fast were tried


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_rate_that_falls_and_rises_is_followed(noise):
    world = World(FAST, noise=noise)
    assert set(world.run(60)) == {0}
    world.network = SLOW
    methods = world.run(100)
    assert all(methods[20:])
    assert world.seconds(methods[-1]) < 1.05 * best(world)
    world.network = FAST
    methods = world.run(150)
    assert set(methods[50:]) == {0}


def test_what_was_learned_on_a_slow_link_does_not_keep_dense_away_on_a_fast_one():
    """Where the link is fast schemes take 20 ms more than modelled, where it is slow none, as their work shows."""
    fast = NetworkSpeed(5e-5, 3e-9)
    for seed in range(10):
        world = World(fast, noise=0.05)
        world.draw, modelled = np.random.default_rng(seed), world.seconds
        world.seconds = lambda method, world=world, modelled=modelled: (
            modelled(method) + 0.02 * (method > 0 and world.network is fast)
        )
        world.run(150)
        world.network = SLOW
        assert all(world.run(150)[20:])
        world.network = fast
        assert set(world.run(70)[50:]) == {0}


@pytest.mark.parametrize(
    "network", [FAST, NetworkSpeed(5e-5, 2e-9), NetworkSpeed(5e-5, 4e-9), NetworkSpeed(5e-5, 8e-9), SLOW]
)
def test_noise_makes_it_switch_rarely(network):
    world = World(network, noise=0.2)
    world.run(60)
    settled = len(world.controllers[0].switches)
    world.run(1000)
    assert len(world.controllers[0].switches) - settled <= 12
    share = sum(world.seconds(method) for method in world.choices[60:]) / (1000 * best(world))
    assert share < 1.1


def test_a_scheme_that_turns_out_slower_than_predicted_is_left_and_not_tried_again():
    world = World(NetworkSpeed(5e-5, 4e-9), numel=25_000_000)
    assert 2 * min(map(world.seconds, range(1, 5))) < world.seconds(0)
    world.factors[1:] = [8.0] * len(PLANS)
    assert best(world) == world.seconds(0)
    methods = world.run(200)
    assert any(methods[:20]) and set(methods[40:]) == {0}
    assert world.controllers[0].stats()["choice"] == "dense" and "faster" in world.controllers[0].reason


def test_probes_take_a_small_share_of_the_time():
    world = World(SLOW)
    world.run(400)
    steps = np.diff(world.probes[3:])
    assert steps.min() >= 10 and steps.max() <= 40
    spent = sum(2 * sum(world._probe(world.controllers[0].probe_bytes(10**9))) for _ in world.probes[3:])
    assert spent < 0.06 * 400 * world.seconds(world.choices[-1])


def test_probes_take_a_small_share_of_the_time_on_the_slowest_links_as_well():
    world = World(NetworkSpeed(5e-5, 8e-6))  # 1 Mbit/s: the least probe takes longer than many steps
    world.run(100)
    spent, methods = 0.0, []
    for _ in range(1000):
        nbytes, before = world.controllers[0].probe_bytes(world.step), len(world.probes)
        methods += world.run(1)
        spent += 3 * sum(world._probe(nbytes)) * (len(world.probes) - before)
    assert 0 < spent < 0.12 * sum(map(world.seconds, methods))


def test_a_probe_that_is_wrong_once_moves_nothing():
    world = World(SLOW)
    world.run(60)
    wrong, world._probe = world._probe, lambda nbytes: (3e-4, 3.1e-4)
    while not world.probes or world.probes[-1] < 60:
        world.run(1)
    world._probe = wrong
    assert all(world.run(60))


def test_ranks_whose_tables_have_gradients_of_other_sizes_decide_alike():
    world, (one, other) = (
        World(NetworkSpeed(5e-5, 2e-9)),
        (BucketTiming(0.0, size, 4 * size) for size in (1 << 14, 1 << 22)),
    )
    for controller, part in zip(world.controllers, (one, other), strict=True):
        note = controller.note
        controller.note = lambda step, sample, note=note, part=part: note(
            step, replace(sample, buckets=(part, *sample.buckets))
        )
    for _ in range(60):
        world.run(1)
        assert world.controllers[0].state_dict() == world.controllers[1].state_dict()
        assert world.controllers[0].predictions == world.controllers[1].predictions


def test_dense_steps_that_are_all_timed_count_as_much_as_compressed_ones():
    """Where dense steps go through the averager, too, all are timed: the shortest was set against usual ones."""
    for seed in range(10):
        world = World(SLOW, noise=0.1)
        world.draw = np.random.default_rng(seed)
        world.factors[1:] = [0.93 * world.seconds(0) / world.seconds(method) for method in range(1, 1 + len(PLANS))]
        world.run(400)
        assert world.choices[200:].count(0) < 50


def test_only_the_last_switches_are_remembered():
    world = World(SLOW, numel=25_000_000)
    world.run(10)
    controller = world.controllers[0]
    for step in range(1000):
        controller._switch(step, step % 2, "is tested")
    assert [one["step"] for one in controller.stats()["switches"]] == list(range(900, 1000))
    assert len(controller.state_dict()["switches"]) == 100


def test_no_scheme_before_the_warm_up_ends():
    world = World(SLOW, first=30)
    methods = world.run(40)
    assert set(methods[:30]) == {0} and all(methods[31:])


def test_schemes_that_wait_for_the_last_bucket_are_predicted_so():
    early, late = World(SLOW, numel=25_000_000), World(SLOW, numel=25_000_000, late=True)
    for world in (early, late):
        world.run(4)
    assert late.controllers[0].predictions[1] > early.controllers[0].predictions[1]


def test_switches_are_logged_once_and_told(caplog):
    with caplog.at_level(logging.INFO, "sparsewire"):
        world = World(SLOW, numel=25_000_000)
        world.controllers[0]._speaks = True
        world.run(40)
    told = world.controllers[0].stats()
    assert len(caplog.records) == len(told["switches"]) >= 1
    first = told["switches"][0]
    assert (first["step"], first["before"]) == (3, "dense") and "ms" in first["reason"]
    assert told["choice"] == world.actives[0].scheme.brief and told["predictions"]["dense"] > told["step"]
    assert told["rate"] == pytest.approx(1e8, rel=0.1) and told["compute"] == pytest.approx(0.018)
    assert told["codecs"][told["choice"]] == pytest.approx(3e-9 * 25e6, rel=1e-3)


@pytest.mark.parametrize("numel", [1_000_000, 25_000_000])
@pytest.mark.parametrize("length", [5, 8, 12])
def test_after_a_short_congestion_dense_returns(numel, length):
    """Only the step before a check times its exchanges, so it may see another rate than those that it stands for."""
    for phase in range(8):
        world = World(FAST, numel=numel)
        sample = world._sample

        def timed(method, world=world, sample=sample):
            controller = world.controllers[0]
            is_timed = controller.due(world.step + 1) and not controller.due(world.step)
            return replace(sample(method), **({} if is_timed else {"busy": 0.0}))

        world._sample = timed
        world.run(40 + phase)
        world.network = replace(FAST, byte=100 * FAST.byte)
        world.run(length)
        world.network = FAST
        assert set(world.run(100)[50:]) == {0}


def test_dense_is_tried_now_and_then_whatever_is_predicted():
    world = World(SLOW, numel=25_000_000)
    world.run(40)
    for controller in world.controllers:
        controller.predictor.histories[0].ratios = [3.0]  # a mistake
    world.network, world.controllers[0].rates.bias, world.controllers[1].rates.bias = FAST, 5.0, 5.0
    world.factors = [1.0, *[30.0] * len(PLANS)]
    assert set(world.run(4000)[-100:]) == {0}


def test_why_it_stays_dense_is_said():
    world = World(FAST)
    world.run(30)
    assert world.controllers[0].stats()["reason"] == "no scheme is faster by the margin"
