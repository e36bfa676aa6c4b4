"""`memory=gain`: the rule against brute force, its laws, and the gain that all ranks share."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from gain_steps import COMPRESSED, MOMENTUM, SOME, gain_of, phased, step_of
from memory_rules import SGD
from strategies import EXCHANGES, same_bits
from trainings import NAMES, averager, gradients, residuals, train

import sparsewire as sw
from sparsewire.codecs.memory import Gain, Residual
from sparsewire.comm import Communicator, run_ranks
from sparsewire.kernels.device.host import KnownPair
from sparsewire.training.residuals.gain import StepGain

# --- the rule ---


class Rule:
    """Global momentum with a gain that sets itself, as it is written down, in float64 and on dense arrays."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.share, self.gain = comm, 0.0, 1.0
        self.kept = {name: np.zeros(NAMES[name]) for name in COMPRESSED}

    def step(self, x: dict[str, np.ndarray], dense: bool) -> dict[str, np.ndarray]:
        """The momentum M."""
        self.gain = 1.0 if dense else float(self.comm.all_reduce(np.array([self.own()]))[0]) / self.comm.size
        total = {name: self.kept[name] + x[name].astype(np.float64) for name in COMPRESSED}
        sent = {name: np.where(dense | largest(u), u, 0) for name, u in total.items()}
        mean = {name: self.comm.all_reduce(part) / self.comm.size for name, part in sent.items()}
        back = 1 - (1 - MOMENTUM) * self.gain
        self.kept = {name: total[name] - sent[name] + back * mean[name] for name in COMPRESSED}
        share = sum((c**2).sum() for c in sent.values()) / sum((u**2).sum() for u in total.values())
        self.share = max(share, 0.98 * self.share + 0.02 * share)
        return {name: self.gain * part for name, part in mean.items()}

    def own(self) -> float:
        return round(1024 * min(max(self.share**-0.5, 1), 1 / (1 - MOMENTUM))) / 1024 if self.share else 1.0


def largest(total: np.ndarray) -> np.ndarray:
    chosen = np.zeros(total.size, bool)
    chosen[np.argsort(-np.abs(total), kind="stable")[: round(0.05 * total.size)]] = True
    return chosen


def test_it_is_the_rule_with_dense_steps_in_between() -> None:
    def fn(comm: Communicator) -> None:
        one, rule, gains = phased(comm, SOME, momenta=dict), Rule(comm), set()
        for step in range(30):
            expected = rule.step(gradients(comm, step), dense=one.scheme is None)
            found = step_of(one, gradients(comm, step))
            assert gain_of(one)["step"] == pytest.approx(rule.gain, rel=1e-6)
            assert gain_of(one)["share"] == pytest.approx(rule.share, rel=1e-4)
            for name in COMPRESSED:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4)
            gains.add(rule.gain)
        assert min(gains) == 1 and max(gains) > 1.3

    run_ranks(3, fn)


def test_the_share_rises_at_once_and_falls_slowly_and_the_gain_stays_within_its_bounds() -> None:
    one = StepGain(Gain(momentum=0.75))
    assert one.own == 1  # nothing is known
    for sent, share, own in [(1, 0.01, 4), (25, 0.25, 2), (0, 0.245, 2069 / 1024), (200, 1, 1), (0, 0.98, 1034 / 1024)]:
        one.clear()
        one.note(KnownPair((100.0, float(sent))))
        one.follow(dense=False)
        assert one.share == pytest.approx(share) and one.own == own
    one.clear()
    one.follow(dense=False)  # no gradient at all
    assert one.share == pytest.approx(0.98)
    one.follow(dense=True)
    assert one.share == 1
    assert StepGain(Residual()).message([], sparse=True) == []


def test_tensors_may_come_in_any_order() -> None:
    """Engines bundle them anew: a sum that depended on the order would not resume to the bit."""
    energies, shares = [KnownPair((number, 0.1 * number**2)) for number in (0.1, 0.3, 0.7, 1.9, 3.3)], set()
    for order in itertools.permutations(energies):
        one = StepGain(Gain())
        for energy in order:
            one.note(energy)
        one.follow(dense=False)
        shares.add(one.share)
    assert len(shares) == 1


def test_dense_steps_that_are_made_elsewhere_count() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, SOME)
        train(one, comm, range(3))
        assert gain_of(one)["share"] < 1
        one.count_dense_step(0)
        assert gain_of(one)["share"] == 1

    run_ranks(1, fn)


# --- with everything sent: SGD with momentum ---


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
@pytest.mark.parametrize("nesterov", [False, True])
def test_with_everything_sent_it_is_sgd_through_resumes_dense_phases_and_rates(momentum: float, nesterov: bool) -> None:
    """Behind an optimizer with the same momentum, or without one, which is handed all of it."""
    scheme = f"nonzero | values=raw | memory=gain(momentum=0.9, nesterov={str(nesterov).lower()})"

    def fn(comm: Communicator) -> None:
        rate = [0.1]
        known = {"momenta": lambda: dict.fromkeys(NAMES, momentum), "rates": lambda: dict.fromkeys(NAMES, rate[0])}
        one = phased(comm, scheme, follow_rate=True, **known)
        weights, plain = ({name: np.ones(NAMES[name]) for name in COMPRESSED} for _ in range(2))
        behind, reference = Nesterov(momentum, nesterov), Nesterov(MOMENTUM, nesterov)
        for step in range(50):
            behind.rate = reference.rate = rate[0] = 0.1 * (1 - step / 50)
            if step in (11, 18, 30):
                state, one = one.state_dict(), phased(comm, scheme, follow_rate=True, **known)
                one.load_state_dict(state)
            x = gradients(comm, step)
            reference.step(plain, {name: comm.all_reduce(x[name]) / comm.size for name in COMPRESSED})
            step_of(one, x)
            behind.step(weights, {name: x[name] for name in COMPRESSED})
            assert gain_of(one) == {"step": 1.0, "share": pytest.approx(1.0, abs=1e-12)}
        for name in COMPRESSED:
            np.testing.assert_allclose(weights[name], plain[name], atol=2e-4)

    run_ranks(2, fn)


def test_after_a_dense_step_the_optimizer_has_all_of_the_momentum() -> None:
    """So the dense steps that follow are plain ones. What is owed of a parameter without a gradient waits."""

    def fn(comm: Communicator) -> None:
        one = phased(comm, SOME)
        train(one, comm, range(5))
        before = {name: (residuals(one)[name], one.states.means[name]) for name in COMPRESSED}
        x = gradients(comm, 5)
        x["v"][:] = 0
        total = comm.all_reduce(x["w"] + before["w"][0]) / comm.size
        step_of(one, x)
        before["w"][1].add_to(total, -MOMENTUM)
        np.testing.assert_allclose(x["w"], total, atol=1e-5)
        assert not residuals(one)["w"].any() and "w" not in one.states.means
        assert not x["v"].any() and same_bits(residuals(one)["v"], before["v"][0])
        assert one.states.means["v"] is before["v"][1]
        plain = comm.all_reduce(gradients(comm, 6)["w"]) / comm.size
        np.testing.assert_allclose(step_of(one, gradients(comm, 6))["w"], plain, atol=1e-6)
        assert gain_of(one) == {"step": 1.0, "share": 1.0} and not residuals(one)["v"].any()

    run_ranks(2, fn)


class Nesterov(SGD):
    """torch's SGD, which looks ahead where it has a momentum."""

    def __init__(self, momentum: float, nesterov: bool) -> None:
        super().__init__(momentum, decay=0)
        self.ahead = momentum if nesterov else 0.0

    def step(self, weights: dict[str, np.ndarray], handed: dict[str, np.ndarray]) -> None:
        super().step(weights, handed)
        for name, g in handed.items() if self.ahead else ():
            buffer = self.buffers[name]
            weights[name] = weights[name] - self.rate * (g + self.ahead * buffer - buffer)


# --- nothing is lost ---


@pytest.mark.parametrize(
    ("exchange", "per"), [*((one, "parameter") for one in EXCHANGES), ("allgather", "bucket"), ("allgather", "model")]
)
def test_every_gradient_moves_the_weights_or_is_kept(exchange: str, per: str) -> None:
    """Σ x = mean of the residuals + (1 − momentum) · Σ M, whatever the gain is."""

    def fn(comm: Communicator) -> None:
        scheme = f"topk(5%) | values=qsgd(5) | memory=gain | exchange={exchange}"
        one, given, moved = averager(comm, scheme, momenta=dict, select_per=per), {}, {}
        for step in range(12):
            x = gradients(comm, step)
            for name in COMPRESSED:
                given[name] = given.get(name, 0) + comm.all_reduce(x[name].astype(np.float64)) / comm.size
            step_of(one, x)
            moved = {name: moved.get(name, 0) + x[name].astype(np.float64) for name in COMPRESSED}
        for name in COMPRESSED:
            kept = comm.all_reduce(one.states.by_name[name]["residual"].astype(np.float64)) / comm.size
            np.testing.assert_allclose(kept + (1 - MOMENTUM) * moved[name], given[name], atol=1e-4)
        assert 1 < gain_of(one)["step"] < 10

    run_ranks(3, fn)


@pytest.mark.parametrize("transform", ["fft", "rows(width=3)"])
def test_a_transform_tells_the_same_share(transform: str) -> None:
    """It is orthonormal: the energy that is sent is what the rest lacks."""

    def fn(comm: Communicator) -> None:
        one = averager(comm, f"topk(20%) | transform={transform} | values=raw | memory=gain")
        x = gradients(comm, 0)
        total = sum(float((x[name].astype(np.float64) ** 2).sum()) for name in COMPRESSED)
        sent: dict[str, float] = {}
        one.settings = dataclasses.replace(one.settings, on_sent=lambda name, part: sent.update({name: energy(part)}))
        step_of(one, x)
        assert 0 < gain_of(one)["share"] < 1
        assert gain_of(one)["share"] == pytest.approx(sum(sent.values()) / total, rel=1e-5)

    run_ranks(1, fn)


def energy(part: sw.Sparse) -> float:
    return float((part.work_values.astype(np.float64) ** 2).sum())
