"""Momentum in front of the selection: equal to the published rules over steps, and to plain SGD where all is sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from memory_rules import NUMEL, SGD, STEPS, K, selected
from strategies import make, same_bits
from trainings import NAMES, averager, gradients, train

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice


def dgc(comm: Communicator, nesterov: bool, mask: bool) -> Iterator[np.ndarray]:
    """The means, by the rule as it is published."""
    u = v = np.zeros(NUMEL, np.float32)
    for step in range(STEPS):
        g = make("normal", NUMEL, "float32", 10 * step + comm.rank)
        momentum = np.float32(0.9)
        u = momentum * (u + g) if nesterov else momentum * u + g
        v = v + (u + g if nesterov else u)
        chosen = selected(v)
        sent = np.where(chosen, v, np.float32(0))
        v = v - sent
        u = np.where(chosen & mask, np.float32(0), u)
        yield comm.all_reduce(sent) / np.float32(comm.size)


def gmc(comm: Communicator) -> Iterator[np.ndarray]:
    e = np.zeros(NUMEL, np.float32)
    for step in range(STEPS):
        total = e + make("normal", NUMEL, "float32", 10 * step + comm.rank)
        sent = np.where(selected(total), total, np.float32(0))
        mean = comm.all_reduce(sent) / np.float32(comm.size)
        e = total - sent + np.float32(0.9) * mean
        yield mean


@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("nesterov", [False, True])
def test_dgc_is_the_published_rule(nesterov: bool, mask: bool) -> None:
    memory = f"dgc(momentum=0.9, nesterov={str(nesterov).lower()}, mask={str(mask).lower()})"
    run_ranks(3, lambda comm: follows(comm, memory, dgc(comm, nesterov, mask)))


def decayed(comm: Communicator) -> Iterator[np.ndarray]:
    e = np.zeros(NUMEL, np.float32)
    for step in range(STEPS):
        total = np.float32(0.9) * e + make("normal", NUMEL, "float32", 10 * step + comm.rank)
        sent = np.where(selected(total), total, np.float32(0))
        e = total - sent
        yield comm.all_reduce(sent) / np.float32(comm.size)


def test_a_residual_that_decays_is_the_published_rule() -> None:
    run_ranks(3, lambda comm: follows(comm, "residual(decay=0.9)", decayed(comm)))


def test_gmc_is_the_published_rule() -> None:
    run_ranks(3, lambda comm: follows(comm, "gmc(momentum=0.9)", gmc(comm)))


def follows(comm: Communicator, memory: str, rule: Iterator[np.ndarray]) -> None:
    s = f"topk(k={K}) | indices=raw | values=raw | memory={memory}"
    one = averager(comm, s, momenta=dict)  # an optimizer without momentum is handed the means themselves
    for step, expected in enumerate(rule):
        x = make("normal", NUMEL, "float32", 10 * step + comm.rank)
        one.put({"w": x})
        one.finish()
        np.testing.assert_allclose(x, expected, atol=1e-5)


# --- gmc, while the learning rate changes ---

RATES = [0.0, 0.0, 0.05, 0.1, 0.1, 0.3, 0.3, 0.0, 0.2, 0.05, 0.01, 0.02]
NONFINITE, RESUMED = 5, 9  # steps


def gmc_on_weights(comm: Communicator, rates: list[float]) -> Iterator[np.ndarray]:
    """u = e + g − (β/η)(w_t − w_{t−1}) as it is published, on weights that move; where η is 0, with the last mean.

    A step that is not finite is skipped, though its rate passes.
    """
    e = w = before = mean = np.zeros(NUMEL)
    for step, rate in enumerate(rates):
        if step != NONFINITE:
            u = e + gradient_at(w, comm, step) + (-(w - before) / rate if rate else mean) * 0.9
            sent = np.where(selected(u), u, 0)
            e, mean = u - sent, comm.all_reduce(sent) / comm.size
            w, before = w - rate * mean, w
        yield w


def gradient_at(w: np.ndarray, comm: Communicator, step: int) -> np.ndarray:
    return 0.3 * w + make("normal", NUMEL, "float64", 10 * step + comm.rank)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("copies", [False, True])
def test_gmc_is_the_published_rule_while_the_rate_changes(momentum: float, copies: bool) -> None:
    """With and without momentum in SGD, through a step that is not finite, a resume, and buffers read as copies."""
    scheme = f"topk(k={K}) | indices=raw | values=raw | memory=gmc(momentum=0.9)"

    def fn(comm: Communicator) -> None:
        rate, w, behind = [0.0], {"w": np.zeros(NUMEL)}, SGD(momentum, decay=0)
        known = {"momenta": lambda: {"w": momentum}, "rates": lambda: {"w": rate[0]}}
        one = averager(comm, scheme, **known)
        for step, expected in enumerate(gmc_on_weights(comm, RATES)):
            rate[0] = behind.rate = RATES[step]
            if step == RESUMED:
                other = averager(comm, scheme, **known)
                other.load_state_dict(one.state_dict())
                one = other
            x = gradient_at(w["w"], comm, step)
            x[0] = np.nan if step == NONFINITE and comm.rank == 1 else x[0]
            put_as(one, x, copies)
            if one.finish():
                behind.step(w, {"w": x})
            np.testing.assert_allclose(w["w"], expected, atol=1e-9)

    run_ranks(3, fn)


def put_as(one: Averager, x: np.ndarray, copies: bool) -> None:
    take = x.copy if copies else lambda: x
    write = (lambda mean: np.copyto(x, mean)) if copies else (lambda mean: None)
    one.put_buffers([Buffer((Slice("w", 0, x.size),), "float64", take, write, copies)])


@pytest.mark.parametrize("memory", ["dgc", "gmc", "gain"])
def test_a_resume_while_the_rate_changes_is_exact(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        rate = [0.0]
        known = {"scheme": f"topk(5%) | memory={memory}", "rates": lambda: dict.fromkeys(NAMES, rate[0])}
        whole, parts = averager(comm, **known), averager(comm, **known)
        for step in range(8):
            rate[0] = 0.1 / (1 + step)
            if step == 5:
                state, parts = parts.state_dict(), averager(comm, **known)
                parts.load_state_dict(state)
            x, y = train(whole, comm, range(step, step + 1)), train(parts, comm, range(step, step + 1))
            assert all(map(same_bits, x, y))
        assert all(map(same_bits, kept_of(whole), kept_of(parts)))

    run_ranks(2, fn)


def test_without_known_rates_gmc_takes_them_for_constant() -> None:
    def fn(comm: Communicator) -> None:
        runs = [averager(comm, "topk(5%) | memory=gmc", rates=rates) for rates in (None, lambda: {"w": 0.1})]
        for step in range(4):
            found = [gradients(comm, step) for _ in runs]
            for one, x in zip(runs, found, strict=True):
                one.put(x)
                one.finish()
            assert all(same_bits(found[0][name], found[1][name]) for name in NAMES)

    run_ranks(2, fn)


# --- behind the user's SGD ---


@pytest.mark.parametrize("memory", ["dgc(momentum=0.9, mask=false)", "gmc(momentum=0.9)", "gain(momentum=0.9)"])
@pytest.mark.parametrize("warmup", [0, 7])
def test_with_everything_sent_the_users_sgd_trains_as_without(memory: str, warmup: int) -> None:
    """Weight decay keeps its own momentum; dense parameters are not concerned; a resume in between."""

    def fn(comm: Communicator) -> None:
        scheme = f"nonzero | values=raw | memory={memory}"
        one = averager(comm, scheme, warmup)
        weights, plain = ({name: np.ones(size) for name, size in NAMES.items()} for _ in range(2))
        behind, reference = SGD(), SGD()
        for step in range(30):
            if step == 11:
                one = resumed(one, comm, scheme, warmup)
            x = gradients(comm, step)
            reference.step(plain, {name: comm.all_reduce(g) / comm.size for name, g in x.items()})
            one.put(x)
            one.finish()
            behind.step(weights, x)
        for name in NAMES:
            np.testing.assert_allclose(weights[name], plain[name], atol=2e-4)

    run_ranks(2, fn)


def resumed(one: Averager, comm: Communicator, scheme: str, warmup: int) -> Averager:
    other = averager(comm, scheme, warmup)
    other.load_state_dict(one.state_dict())
    return other


def test_the_optimizer_without_momentum_is_handed_the_means() -> None:
    def fn(comm: Communicator) -> None:
        handed, whole = (averager(comm, "topk(5%) | memory=dgc", momenta=m) for m in (None, lambda: {"w": 0.0}))
        buffer = 0
        for step in range(5):
            x, y = gradients(comm, step), gradients(comm, step)
            for one, gradient in ((handed, x), (whole, y)):
                one.put(gradient)
                one.finish()
            buffer = 0.9 * buffer + x["w"].astype(np.float64)
            np.testing.assert_allclose(buffer, y["w"], atol=1e-5)

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", ["dgc", "dgc(mask=false)", "gmc", "gain"])
def test_buffers_and_means_follow_the_scale_and_nonfinite_steps_leave_them(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        scale, rate, scheme = [1.0], [0.1], f"topk(5%) | values=raw | memory={memory}"
        known = {"rates": lambda: {"w": rate[0], "v": 0.1}}
        plain, scaled = averager(comm, scheme, **known), averager(comm, scheme, scale=lambda: scale[0], **known)
        for step, factor in enumerate([1.0, 4.0, 4.0, 0.5]):
            scale[0], rate[0] = factor, 0.1 / (1 + step)
            x, y = gradients(comm, step), gradients(comm, step, factor)
            if step == 2:
                for gradient in (x, y):
                    gradient["w"][0] = np.nan if comm.rank == 1 else 0
            plain.put(x)
            scaled.put(y)
            before = [kept_of(one) for one in (plain, scaled)]
            assert {plain.finish(), scaled.finish()} == {step != 2}
            if step == 2:
                assert all(map(same_bits, before[0] + before[1], kept_of(plain) + kept_of(scaled)))
            else:
                np.testing.assert_allclose(y["w"], x["w"] * factor, rtol=1e-5, atol=1e-6)

    run_ranks(2, fn)


def kept_of(one: Averager) -> list[np.ndarray]:
    """Copies of all that is kept from step to step."""
    buffers = [kept for name in ("w", "v") for kept in one.states.saved().get(name, {}).values()]
    return buffers + [one.states.means[name].values for name in ("w", "v") if name in one.states.means]


def test_settings_out_of_range_are_refused() -> None:
    for memory in ("dgc(momentum=1.0)", "gmc(momentum=-0.1)", "gain(momentum=1.0)", "residual(decay=1.5)"):
        with pytest.raises(sw.SchemeError, match="lies in"):
            sw.scheme(f"topk | memory={memory}")
