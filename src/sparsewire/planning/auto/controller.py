"""`Controller`: chooses dense or one of several schemes, step by step, from what the ranks measure.

1. Each rank notes its steps: seconds, when its buckets were ready, how long dense exchanges took (`Sample`).
2. At a check the ranks agree on these numbers, by the maximum over all ranks. From there on everything is computed from
   agreed numbers, so all ranks decide alike.
3. `Predictor` says how long a step takes by each method.
4. Dense is left for a scheme that is shorter by the margin, and taken up again as soon as it is no longer. Schemes that
   are predicted to be about as short as the one in use are tried once, dense now and then.

Dense steps tell the network's rate by themselves. Compressed ones send too little for that, so a probe is made now and
then (`Rates`).
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparsewire.codecs.scheme import Scheme
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from ..cost.model import NetworkSpeed
from ..cost.step import Codecs, Compute
from .predictor import Predictor, StepHistory
from .rates import PROBE_SECONDS, Rates, probe_interval
from .samples import NOISE, WINDOW, Agreed, Sample, mean, report
from .settings import ActiveScheme
from .trial import LEAST, network_of, probe_size

logger = logging.getLogger("sparsewire")
DENSE, TRIED = "dense", "tried, for it may be faster"
EVERY = 8  # steps between checks of dense steps, and before the first decision, if these are short:
PATIENCE = 5.0  # seconds that they take at most
SETTLE = 3  # steps from a switch to the check of what it brought: the first of them is not counted
TRY = 2.0  # times the step in use: predicted within that, and below dense, a scheme that was never run is tried
WARM = 1  # steps more that are not counted after dense ones
SPENT = 0.01  # of the time that trying dense may take where it is predicted to be slower, by more than noise
HOLD, LONGEST = 20, 1280  # steps after a switch in which only clear ones follow; doubles with each
REMEMBERED = 100  # switches


@dataclass(frozen=True)
class Switch:
    step: int
    before: str
    after: str
    reason: str


class Controller:
    """Everything but the samples is the same on all ranks. `choice` is the method in use: 0 for dense, i for the i-th
    scheme."""

    def __init__(
        self, plans: Sequence[Scheme], codecs: Mapping[Scheme, Codecs], network: NetworkSpeed, size: int,
        active: ActiveScheme, margin: float = 0.05, first: int = 0, late: bool = False, speaks: bool = False,
    ) -> None:  # fmt: skip
        """`codecs` has what `coding(plan)` costs; `first`: no scheme before this step; `late`: schemes exchange after
        the last bucket; `speaks`: switches are logged here."""
        self.predictor, self.rates = Predictor(plans, codecs, size, late), Rates.of(network)
        self._names = [DENSE, *(plan.brief for plan in plans)]
        self._size, self._active, self._margin, self._speaks = size, active, margin, speaks
        self.samples: list[Sample] = []
        self.choice, self.since, self.hold = 0, 0, HOLD
        self.wanted: int | None = None
        self._was_dense = False  # whether the steps before the last switch were
        self.last_dense, self.trial = 0, False  # the last dense step; whether dense is in use to be measured again
        self.next_check = max(2, first - 1)
        self.begun, self.earlier = 0, 0.0  # the step after the start or a load; seconds of a step before that
        self.next_probe, self._ask_again = 0, False
        self.compute, self.measured = Compute(0.0, ()), 0.0  # of the last steps
        self.predictions: list[float] = []
        self.reason = "dense until it is measured"
        self.switches: list[Switch] = []

    @property
    def network(self) -> NetworkSpeed:
        return self.rates.network

    @property
    def methods(self) -> tuple[Scheme | None, ...]:
        return self.predictor.methods

    # --- what is measured ---

    def note(self, step: int, sample: Sample) -> None:
        """Notes a step that has ended; the first one after a switch is not like the others."""
        if step > self.since + (WARM if self._was_dense else 0):
            self.samples = [*self.samples, sample][-WINDOW:]

    def due(self, step: int) -> bool:
        """Whether the ranks agree at the end of this step."""
        return step >= self.next_check

    def probe_bytes(self, step: int) -> int:
        """How large a probe belongs to this step's check; 0 for none, as dense steps need none."""
        if self.choice == 0 or not (step >= self.next_probe or self.wanted == 0):
            return 0
        return probe_size(self.network.byte, self._size, PROBE_SECONDS)

    def report(self, probe: tuple[float, float] = (0.0, 0.0)) -> Array:
        """What this rank measured, for a maximum over the ranks."""
        return report(self.samples, probe)

    # --- what follows from it ---

    def decide(self, step: int, agreed: Array, probe_bytes: int = 0) -> None:
        """At the end of a step: how the next ones go, by the numbers that all ranks have agreed on."""
        if not self.samples:
            self.next_check = step + 2
            return
        steps = self._learn(Agreed.of(agreed), probe_bytes)
        if self._is_cold(step):
            self.next_check = self.begun + EVERY
            return
        if self.choice == 0:
            self.last_dense = step
        self.predictions = self.predictor.predict(self.choice, self.compute, steps, self.network)
        if probe_bytes:
            wait = SETTLE if self._ask_again else probe_interval(self.network, self._size, self.measured)
            self.next_probe = step + wait
        target, reason = self._target(step)
        if target != self.choice and self._sure(step, target):
            self._switch(step + 1, target, reason)
            return
        self.wanted = None if target == self.choice else target
        if self.choice == target == 0:
            self.reason = reason
        steady = step + EVERY if self.choice == 0 else max(step + SETTLE, min(step + EVERY, self.next_probe))
        self.next_check = steady if self.wanted is None else step + SETTLE

    def _is_cold(self, step: int) -> bool:
        """The first steps of a process are slower than others."""
        first = self.since <= self.begun and step - self.begun < EVERY and self.measured * EVERY < PATIENCE
        return first and (not self.earlier or self.measured > NOISE * self.earlier)

    def _learn(self, agreed: Agreed, probe_bytes: int) -> list[float]:
        """The seconds of the steps by which the method in use is judged."""
        seconds = mean(agreed.steps)
        if NOISE * seconds < self.measured:  # shorter steps may be those of a faster network
            self.next_probe = 0
        self.measured, self.compute, self.samples = seconds, agreed.compute, []
        if probe_bytes:
            self._ask_again = self.rates.learn_probe(network_of(*agreed.probe, probe_bytes, self._size))
        if self.choice == 0 and agreed.busy:
            self.rates.learn_dense(agreed.busy, agreed.compute.buckets, self._size)
        # A dense step must be like that by which the network was timed: the others may have had another rate.
        return [min(seconds, agreed.timed)] if self.choice == 0 else agreed.steps

    def _target(self, step: int) -> tuple[int, str]:
        """The method to use next, and why."""
        now, dense = self.predictions[self.choice], self.predictions[0]
        best = min(range(1, len(self.methods)), key=self.predictions.__getitem__)
        if self.choice == 0:
            enough = self.predictions[best] * (1 + self._margin) < dense
            return (best, "predicted to be faster") if enough else (0, "no scheme is faster by the margin")
        if dense <= min(now, self.predictions[best]):
            return 0, "predicted to be faster"
        if step - self.last_dense >= max(self.hold, 0 if dense < NOISE * now else SETTLE / SPENT * dense / now):
            return 0, TRIED
        new = [method for method in range(1, len(self.methods)) if self._untried(method, now)]
        if new:
            return min(new, key=self.predictions.__getitem__), TRIED
        if self.predictions[best] * (1 + self._margin / 2) < now:
            return best, "faster"
        return self.choice, "no other is faster by the margin"

    def _untried(self, method: int, now: float) -> bool:
        return not self.predictor.histories[method].ratios and self.predictions[method] < min(
            now * TRY, self.predictions[0]
        )

    def _sure(self, step: int, target: int) -> bool:
        """Whether to switch at once: small gains, what a probe alone promises, and a scheme in use that seems to have
        become slower, are looked at twice."""
        twice = self.wanted == target
        if self.choice and target:
            return twice or step - self.since <= SETTLE + WARM
        if target == 0:
            return twice
        clear = self.trial or self.predictions[0] > NOISE * self.predictions[target]
        return clear or (twice and (not self.switches or step - self.since >= self.hold))

    def _switch(self, step: int, target: int, reason: str) -> None:
        was, now, self._was_dense = self._names[self.choice], self._names[target], self.choice == 0
        why = f"{reason}: {_ms(self.predictions[target])} a step, {was} {_ms(self.predictions[self.choice])}"
        self.switches = [*self.switches, Switch(step, was, now, why)][-REMEMBERED:]
        if 0 in (self.choice, target):
            soon = len(self.switches) > 1 and step - self.since < 4 * self.hold
            self.hold = min(LONGEST, 2 * self.hold) if soon else HOLD
        if self.choice == 0:
            self.rates.unmatched, self.next_probe = True, step
        self.choice, self.since, self.reason, self.wanted = target, step, why, None
        self.trial = target == 0 and reason == TRIED
        self.next_check, self._active.scheme = step + SETTLE + WARM * self._was_dense, self.methods[target]
        if self._speaks:
            logger.info("auto: from step %d on %s: %s", step, now, why)

    # --- statistics and state ---

    def stats(self) -> dict[str, Any]:
        """The choice and its reason; the network's rate in bits a second; seconds of computing, codecs and steps."""
        own = zip(self._names[1:], self.predictor.codecs.values(), strict=True)
        return {
            "choice": self._names[self.choice],
            "since": self.since,
            "reason": self.reason,
            "rate": 8 / max(self.network.byte, LEAST),
            "latency": self.network.latency,
            "compute": self.compute.seconds,
            "step": self.measured,
            "codecs": {name: codecs.seconds(self.compute.numel) for name, codecs in own},
            "predictions": dict(zip(self._names, self.predictions, strict=False)),
            "switches": [asdict(switch) for switch in self.switches],
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain types only; the same on every rank."""
        return {
            "methods": list(self._names),
            **{name: getattr(self, name) for name in SAVED},
            "histories": [history.saved() for history in self.predictor.histories],
            **self.rates.saved(),
            "switches": [asdict(switch) for switch in self.switches],
        }

    def check_state(self, state: Mapping[str, Any] | None) -> None:
        """Raises where `load_state_dict` would fail, or could not go on; nothing changes."""
        if state is None or list(state["methods"]) != self._names:
            return
        trial = copy.copy(self)
        trial._active, trial.rates, trial.predictor = ActiveScheme(), copy.copy(self.rates), copy.copy(self.predictor)
        trial.load_state_dict(state, 0)
        places = [trial.choice, *([] if trial.wanted is None else [trial.wanted])]
        numbers = [value for name, value in (*vars(trial.rates).items(), *state.items()) if name in NUMBERS]
        if len(trial.predictor.histories) != len(self.methods) or any(
            place not in range(len(self.methods)) for place in places
        ):
            raise InputError("auto: the state has other schemes than it says")
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
            raise InputError("auto: the state has something else where numbers are due")

    def load_state_dict(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Goes on at this step from a saved state; without one, or of other candidates, it starts again."""
        self.samples, self.begun, self.earlier = [], step, 0.0
        if state is None or list(state["methods"]) != self._names:
            if state is not None:
                logger.warning("auto: the saved state is of other candidates; it starts dense")
            self.choice, self.since, self.last_dense, self.wanted, self.trial = 0, step, step, None, False
            self.rates.unmatched, self._active.scheme, self.next_check = False, None, step + 2
            return
        for name in SAVED:
            setattr(self, name, state[name])
        self.predictor.histories = [StepHistory.loaded(history) for history in state["histories"]]
        self.rates = self.rates.loaded(dict(state))
        self.switches = [Switch(**switch) for switch in state["switches"]]
        self._active.scheme, self.earlier = self.methods[self.choice], self.measured
        self.begun = step if self.earlier else 0


SAVED = (
    "choice", "since", "hold", "wanted", "last_dense", "trial", "next_check", "next_probe", "measured", "reason",
)  # fmt: skip
NUMBERS = {"since", "hold", "last_dense", "next_check", "next_probe", "measured", "latency", "byte", "probed", "bias"}


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
