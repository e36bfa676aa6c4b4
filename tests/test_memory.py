"""Momentum in front of the selection: equal to the published rules over steps, and to plain SGD where all is sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from strategies import make
from test_averager import NAMES, averager, gradients

import sparsewire as sw
from sparsewire.averager import Averager
from sparsewire.comm import Communicator, run_ranks

STEPS, NUMEL, K = 12, 300, 15


def selected(total: np.ndarray) -> np.ndarray:
    """The mask of the K largest."""
    chosen = np.zeros(total.size, bool)
    chosen[np.argsort(-np.abs(total), kind="stable")[:K]] = True
    return chosen


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


class SGD:
    """torch's SGD with momentum on NumPy arrays, with weight decay."""

    def __init__(self, momentum: float = 0.9, decay: float = 0.01) -> None:
        self.momentum, self.decay = momentum, decay
        self.buffers: dict[str, np.ndarray] = {}

    def step(self, weights: dict[str, np.ndarray], handed: dict[str, np.ndarray]) -> None:
        for name, g in handed.items():
            g = g.astype(np.float64) + self.decay * weights[name]
            self.buffers[name] = self.momentum * self.buffers.get(name, 0) + g
            weights[name] = weights[name] - 0.1 * self.buffers[name]


@pytest.mark.parametrize("memory", ["dgc(momentum=0.9, mask=false)", "gmc(momentum=0.9)"])
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


def test_velocity_and_residual_follow_the_scale_and_spoiled_steps_leave_them() -> None:
    def fn(comm: Communicator) -> None:
        scale = [1.0]
        plain, scaled = (
            averager(comm, "topk(5%) | values=raw | memory=dgc"),
            averager(comm, "topk(5%) | values=raw | memory=dgc", scale=lambda: scale[0]),
        )
        for step, factor in enumerate([1.0, 4.0, 4.0, 0.5]):
            scale[0] = factor
            x, y = gradients(comm, step), gradients(comm, step, factor)
            if step == 2:
                for gradient in (x, y):
                    gradient["w"][0] = np.nan if comm.rank == 1 else 0
            for one, gradient in ((plain, x), (scaled, y)):
                before = one.states.saved() if step == 2 else None
                one.put(gradient)
                assert one.finish() == (step != 2)
                if before is not None:
                    after = one.states.saved()
                    assert all(np.array_equal(after[n][b], k) for n, kept in before.items() for b, k in kept.items())
            if step != 2:
                np.testing.assert_allclose(y["w"], x["w"] * factor, rtol=1e-5, atol=1e-6)

    run_ranks(2, fn)


def test_settings_out_of_range_are_refused() -> None:
    for memory in ("dgc(momentum=1.0)", "gmc(momentum=-0.1)", "residual(decay=1.5)"):
        with pytest.raises(sw.SchemeError, match="lies in"):
            sw.scheme(f"topk | memory={memory}")
