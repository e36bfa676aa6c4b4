"""What waits to be sent keeps its weight when the learning rate changes, against brute force."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from memory_rules import NUMEL, K, selected
from strategies import make, same_bits
from trainings import averager

from sparsewire.comm import Communicator, run_ranks
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice

RATES = [0.0, 0.1, 0.4, 0.4, 0.3, 0.0, 0.03, 0.03, 0.2, 0.1, 0.05, 0.001]
RULES = {"residual": (0.0, 0.0), "dgc(mask=false)": (0.9, 1.0), "dgc(nesterov=true)": (0.9, 0.9)}


def units() -> Iterator[tuple[float, float]]:
    """(rate of the step, rate that what waits is meant for): a rate of zero moves nothing, and nothing follows it."""
    known = None
    for rate in RATES:
        before, known = known, rate or known
        yield rate, (before / rate if before and rate else 1.0)


def rule(comm: Communicator, memory: str) -> Iterator[np.ndarray]:
    """The means: `wait` is what was not sent, as a gradient at the present rate; the momentum does not wait."""
    momentum, share = RULES[memory]
    velocity = wait = np.zeros(NUMEL)
    for step, (_, factor) in enumerate(units()):
        g = gradient(comm, step).astype(np.float64)
        velocity = momentum * velocity + g
        moving = g if not momentum else velocity if share == 1 else share * velocity + g
        total = factor * wait + moving
        sent = np.where(selected(total), total, 0)
        wait, velocity = total - sent, np.where(selected(total) & ("nesterov" in memory), 0, velocity)
        yield comm.all_reduce(sent) / comm.size


def gradient(comm: Communicator, step: int) -> np.ndarray:
    return make("normal", NUMEL, "float32", 10 * step + comm.rank)


def following(comm: Communicator, memory: str, rate: list[float], follow: bool = True) -> Averager:
    s = f"topk(k={K}) | indices=raw | values=raw | memory={memory}"
    return averager(comm, s, momenta=dict, rates=lambda: {"w": rate[0]}, follow_rate=follow)


def step_of(one: Averager, x: np.ndarray) -> np.ndarray:
    one.put({"w": x})
    assert one.finish()
    return x


@pytest.mark.parametrize("memory", RULES)
def test_what_waits_keeps_its_weight(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        rate = [0.0]
        one = following(comm, memory, rate)
        for step, (now, expected) in enumerate(zip(RATES, rule(comm, memory), strict=True)):
            rate[0] = now
            np.testing.assert_allclose(step_of(one, gradient(comm, step)), expected, rtol=1e-4, atol=1e-4)

    run_ranks(3, fn)


def test_all_that_was_sent_moves_the_weights_as_far_as_it_would_have_at_once() -> None:
    """Σ rate · mean + rate · what waits = Σ rate · gradient, on average over the ranks."""

    def fn(comm: Communicator) -> None:
        rate, due, moved = [0.0], np.zeros(NUMEL), np.zeros(NUMEL)
        one = following(comm, "residual", rate)
        for step, now in enumerate([0.1, 0.05, 0.3, 0.02, 0.01]):
            rate[0], x = now, gradient(comm, step)
            due += now * comm.all_reduce(x.astype(np.float64)) / comm.size
            moved += now * step_of(one, x)
        waits = comm.all_reduce(one.states.by_name["w"]["residual"].astype(np.float64)) / comm.size
        np.testing.assert_allclose(moved + 0.01 * waits, due, atol=1e-6)

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", ["residual", "dgc", "gmc", "gain"])
def test_a_resumed_training_follows_as_one_that_never_stopped(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        rate = [0.0]
        one = other = following(comm, memory, rate)
        for step, now in enumerate(RATES):
            if step == 7:
                other = following(comm, memory, rate)
                other.load_state_dict(one.state_dict())
            rate[0] = now
            means = [step_of(each, gradient(comm, step)) for each in dict.fromkeys((one, other))]
            assert all(same_bits(means[0], mean) for mean in means)
            if step < 7:
                continue
            assert same_bits(one.states.by_name["w"]["residual"], other.states.by_name["w"]["residual"])

    run_ranks(2, fn)


def test_a_rate_that_nobody_followed_in_between_is_forgotten() -> None:
    def fn(comm: Communicator) -> None:
        rate = [0.4]
        runs = [following(comm, "residual", rate, follow) for follow in (True, False, True)]
        step_of(runs[0], gradient(comm, 0))
        runs[1].load_state_dict(runs[0].state_dict())
        rate[0] = 0.1
        step_of(runs[1], gradient(comm, 1))
        runs[2].load_state_dict(runs[1].state_dict())
        step_of(runs[2], np.zeros(NUMEL, np.float32))
        assert same_bits(runs[2].states.by_name["w"]["residual"], runs[1].states.by_name["w"]["residual"])

    run_ranks(1, fn)


def test_a_small_change_waits_until_it_is_worth_a_pass() -> None:
    def fn(comm: Communicator) -> None:
        rate = [1.0]
        one, plain = following(comm, "residual", rate), following(comm, "residual", rate, follow=False)
        for step in range(4):
            rate[0] = 1 - 0.003 * step  # 0.9 % in all
            assert same_bits(step_of(one, gradient(comm, step)), step_of(plain, gradient(comm, step)))
        rate[0] = 0.98
        assert not same_bits(step_of(one, gradient(comm, 9)), step_of(plain, gradient(comm, 9)))

    run_ranks(1, fn)


def test_parameters_side_by_side_follow_rates_of_their_own() -> None:
    def fn(comm: Communicator) -> None:
        rates = {"a": 1.0, "b": 1.0}
        slices = (Slice("a", 0, 100), Slice("b", 100, 200))
        one = averager(comm, "topk(k=2) | values=raw", momenta=dict, rates=lambda: rates, follow_rate=True,
                       select_per="bucket")  # fmt: skip
        for _ in range(2):
            numbers = np.arange(1, 201, dtype=np.float32)
            one.put_buffers([Buffer(slices, "float32", lambda: numbers)])  # noqa: B023
            one.finish()
            rates["b"] = 0.5
        kept = {name: buffers["residual"] for name, buffers in one.states.by_name.items()}
        assert kept["a"][0] == 2 and kept["b"][0] == 101 + 2 * 101

    run_ranks(1, fn)
