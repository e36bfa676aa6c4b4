"""Buckets with compressed and dense parameters: what waited of a parameter that now travels dense is sent once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exchange_rows import ROWS
from strategies import MEMORIES, make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.training.averager import Averager, Settings
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.local.outer import OuterSGD
from sparsewire.training.local.round_schedule import RoundSchedule
from sparsewire.training.local.rounds import CALLED, Plan, Rounds
from sparsewire.training.schedule import SchemeSchedule

SIZES = {"v": 40, "b": 30, "w": 300}
DENSE = {"a larger dense_below": {"dense_below": 35}, "a new exclude": {"dense_names": frozenset({"b"})}}
Means = list[dict[str, np.ndarray]]


def averager(comm: Communicator, scheme: str, **settings: Any) -> Averager:
    return Averager(comm, Settings(SchemeSchedule(sw.scheme(scheme)), **{"dense_below": 10, **settings}))


def gradients(comm: Communicator, step: int) -> dict[str, np.ndarray]:
    return {
        name: make("normal", size, "float32", 1000 * step + 10 * comm.rank + place)
        for place, (name, size) in enumerate(SIZES.items())
    }


def bucket(x: dict[str, np.ndarray], copies: bool) -> tuple[Buffer, np.ndarray]:
    """The gradients side by side, where they are, or as a copy at each look; and what will hold their means."""
    flat, ends = np.concatenate(list(x.values())), np.cumsum([0, *map(len, x.values())]).tolist()
    slices = tuple(Slice(name, ends[place], ends[place + 1]) for place, name in enumerate(x))
    if copies:
        return Buffer(slices, "float32", flat.copy, lambda mean: np.copyto(flat, mean), copies=True), flat
    return Buffer(slices, "float32", flat.view), flat


def train(one: Averager, steps: range, copies: bool = False, unused: str = "") -> Means:
    """The means of each step; rank 0 has no gradient for `unused`."""
    means = []
    for step in steps:
        x = gradients(one.comm, step)
        if unused and one.comm.rank == 0:
            x[unused][:] = 0
        buffer, flat = bucket(x, copies)
        one.put_buffers([buffer])
        assert one.finish()
        means.append({item.name: flat[item.start : item.stop] for item in buffer.slices})
    return means


def resumed(comm: Communicator, scheme: str, change: dict[str, Any], **settings: Any) -> Averager:
    """Goes on, with other parameters dense, from a training that has something waiting for all of them."""
    first, second = averager(comm, scheme, **settings), averager(comm, scheme, **settings, **change)
    train(first, range(3))
    second.load_state_dict(first.state_dict())
    assert all(second.states.by_name[name]["residual"].any() for name in SIZES) or first.nodes.grid.parts > 1
    return second


@pytest.mark.parametrize("per", ["parameter", "bucket", "model"])
@pytest.mark.parametrize("change", DENSE.values(), ids=list(DENSE))
def test_what_waited_is_sent_once(change: dict[str, Any], per: str) -> None:
    def fn(comm: Communicator) -> None:
        one = resumed(comm, "topk(5%) | values=raw", change, select_per=per)
        waited = comm.all_reduce(one.states.by_name["b"]["residual"].copy()) / comm.size
        for step, means in enumerate(train(one, range(3, 7)), start=3):
            plain = comm.all_reduce(gradients(comm, step)["b"]) / comm.size
            np.testing.assert_allclose(means["b"], plain + waited * (step == 3), atol=1e-6)
            assert "b" not in one.states.by_name

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("exchange", ROWS)
def test_a_bucket_that_is_written_in_place_gives_the_same_means(exchange: str, memory: str) -> None:
    scheme = f"topk(5%) | values=raw | memory={memory} | exchange={exchange}"
    _same_in_place(2, scheme, DENSE["a larger dense_below"])


@pytest.mark.parametrize("memory", ["residual", "dgc(0.5)", "gmc(0.5)"])
@pytest.mark.parametrize("change", DENSE.values(), ids=list(DENSE))
def test_a_bucket_of_machines_gives_the_same_means(change: dict[str, Any], memory: str) -> None:
    _same_in_place(4, f"topk(5%) | values=raw | memory={memory}", change, nodes=2)


def _same_in_place(size: int, scheme: str, change: dict[str, Any], **settings: Any) -> None:
    def fn(comm: Communicator) -> None:
        here, there = (resumed(comm, scheme, change, **settings) for _ in range(2))
        for means, expected in zip(train(here, range(3, 7)), train(there, range(3, 7), copies=True), strict=True):
            assert all(same_bits(means[name], expected[name]) for name in SIZES)
        assert "b" not in here.states.by_name
        assert here.states.by_name.keys() == there.states.by_name.keys()

    run_ranks(size, fn)


@pytest.mark.parametrize("copies", [False, True])
def test_what_waits_of_an_unused_parameter_stays_until_it_is_used(copies: bool) -> None:
    """On the rank that does not use it: that rank cannot know whether the mean will be looked at."""

    def fn(comm: Communicator) -> None:
        one = resumed(comm, "topk(5%) | values=raw", DENSE["a new exclude"])
        before = one.states.by_name["b"]["residual"].copy()
        train(one, range(3, 5), copies, unused="b")
        if comm.rank == 0:
            assert same_bits(one.states.by_name["b"]["residual"], before)
        else:
            assert "b" not in one.states.by_name
        train(one, range(5, 6), copies)
        assert "b" not in one.states.by_name

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", ["residual", "dgc(0.5, mask=false)"])
def test_local_steps_send_what_waited_once(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        def rounds(**change: Any) -> Rounds:
            schedule = SchemeSchedule(sw.scheme(f"topk(5%) | values=raw | memory={memory}"))
            settings = Settings(schedule, **{"dense_below": 10, **change})
            start = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
            plan = Plan(RoundSchedule(1), OuterSGD())
            return Rounds(comm, settings, plan, start, dict.fromkeys(SIZES, "float32"))

        def meet(one: Rounds, step: int) -> np.ndarray:
            before = one.given("b")
            changes = gradients(comm, step)
            one.count()
            assert one.hold(one.visit({name: one.given(name) - x for name, x in changes.items()}, CALLED))
            return before - one.given("b")

        first, second = rounds(), rounds(**DENSE["a larger dense_below"])
        for step in range(3):
            meet(first, step)
        second.averager.load_state_dict(first.averager.state_dict())
        second.meeting = first.meeting
        meet(second, 3)
        for step in range(4, 6):
            plain = comm.all_reduce(gradients(comm, step)["b"]) / comm.size
            np.testing.assert_allclose(meet(second, step), plain, atol=1e-5)

    run_ranks(2, fn)
