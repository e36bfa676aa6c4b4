"""Ranks on a network that is made up, whose steps take what the model says: for tests of `auto`."""

from __future__ import annotations

import numpy as np

from sparsewire.planning.auto import ActiveScheme, Controller, Sample, read_auto
from sparsewire.planning.cost.coded import Speeds
from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.planning.cost.step import BucketTiming, Codecs, Compute, coding, dense_step, sparse_step
from sparsewire.planning.cost.volume import all_reduce

FAST, SLOW = NetworkSpeed(5e-5, 2e-10), NetworkSpeed(5e-5, 8e-8)  # not limited; 100 Mbit/s
SPEEDS = Speeds(3e-9, 3e-9, 2e-5, 5e-5, 1e-8, 1e-8, 2e-9, 2e-9, 1e-8, 1e-9, 0.0)
CODECS = Codecs(2e-9, 1e-9, 1.0, 0.01, SPEEDS)
READY = (0.0, 0.004, 0.008)
PLANS = read_auto("auto").plans


class World:
    """Ranks whose steps take what the model says, times what they really take: `factors`, by method; and some noise."""

    def __init__(self, network: NetworkSpeed, numel: int = 1_000_000, size: int = 4, noise: float = 0.0, **settings):
        self.network, self.size, self.noise, self.step = network, size, noise, 0
        self.factors = [1.0] * (1 + len(PLANS))
        self.buckets = tuple(BucketTiming(at, numel // 3, 4 * numel // 3) for at in READY)
        self.draw = np.random.default_rng(0)
        self.actives = [ActiveScheme() for _ in range(2)]
        codecs = dict.fromkeys(map(coding, PLANS), CODECS)
        self.controllers = [Controller(PLANS, codecs, network, size, active, **settings) for active in self.actives]
        self.choices: list[int] = []
        self.probes: list[int] = []

    def seconds(self, method: int) -> float:
        compute, plan = Compute(0.01, self.buckets), self.controllers[0].methods[method]
        if plan is None:
            return self.factors[0] * dense_step(compute, self.network, self.size)
        return self.factors[method] * sparse_step(plan, CODECS, compute, self.network, self.size)

    def run(self, steps: int) -> list[int]:
        """The methods of so many steps; what two ranks measure differs, what they decide does not."""
        for _ in range(steps):
            method = self.controllers[0].choice
            assert (
                self.controllers[1].choice == method
                and self.actives[0].scheme == self.actives[1].scheme == self.controllers[0].methods[method]
            )
            for controller in (
                self.controllers if method else ()
            ):  # on the communication thread a step has ended when the ranks agree
                controller.note(self.step, self._sample(method))
            nbytes = self.controllers[0].probe_bytes(self.step)
            if self.controllers[0].due(self.step):
                reports = [
                    controller.report(self._probe(nbytes) if nbytes else (0.0, 0.0)) for controller in self.controllers
                ]
                for controller in self.controllers:
                    controller.decide(self.step, np.max(reports, axis=0), nbytes)
                self.probes += [self.step] * bool(nbytes)
            for controller in () if method else self.controllers:
                controller.note(self.step, self._sample(method))
            self.choices.append(method)
            self.step += 1
        return self.choices[-steps:]

    def _sample(self, method: int) -> Sample:
        seconds = self.seconds(method) * (1 + self.noise * float(self.draw.uniform(-1, 1)))
        moved = [all_reduce(bucket.nbytes, self.size) for bucket in self.buckets]
        busy = sum(self.network.latency * one.rounds + self.network.byte * one.sent for one in moved)
        return Sample(seconds, 0.01, busy if method == 0 else 0.0, self.buckets)

    def _probe(self, nbytes: int) -> tuple[float, float]:
        small, moved = 2 * (self.size - 1) * self.network.latency, all_reduce(nbytes, self.size)
        return small, small + self.network.byte * moved.sent * (1 + self.noise * float(self.draw.uniform(-1, 1)))


def best(world: World) -> float:
    return min(world.seconds(method) for method in range(1 + len(PLANS)))
