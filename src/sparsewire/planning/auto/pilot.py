"""`Pilot`: chooses dense or one of several schemes, step by step, from what the ranks measure.

1. Each rank notes its steps: seconds, when its buckets were ready, how long dense exchanges took (`Sample`).
2. At a check the ranks agree on these numbers, by the maximum over all ranks. From there on everything is computed from
   agreed numbers, so all ranks decide alike.
3. The cost model says how long a step takes each way. What was run already is corrected by measured / modelled; a
   scheme that was not is corrected like the others.
4. Dense is left for a scheme that is shorter by the margin, and taken up again as soon as it is no longer. Schemes that
   are predicted to be about as short as the one in use are tried once, dense now and then.

The link: dense steps tell its rate by themselves. Compressed ones send too little for that, so a probe is made now and
then (`Rates`).
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sparsewire.codecs.scheme import Scheme
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from ..cost.model import Link
from ..cost.step import Codecs, Compute, Part, coding, dense_step, sparse_step
from ..cost.volume import all_reduce
from .rates import Rates
from .samples import WINDOW, Known, Sample, calm, lower, mean
from .settings import Wheel
from .trial import LEAST, PROBE, REPEAT, link_of, probe_size

logger = logging.getLogger("sparsewire")
DENSE, TRIED = "dense", "tried, for it may be faster"
EVERY = 8  # steps between checks of dense steps, and before the first decision, if these are short:
PATIENCE = 5.0  # seconds that they take at most
COLD = 1.5  # times the step before a load: the first after it are not trusted
SETTLE = 3  # steps from a switch to the check of what it brought: the first of them is not counted
CLEAR = 1.3  # times faster: needs no second check
TRY = 2.0  # times the step in use: predicted within that, and below dense, a scheme that was never run is tried
WARM = 1  # steps more that are not counted after dense ones
AGAIN = 1.25  # times the step in use: predicted within that, dense is tried again
SPENT = 0.01  # of the time that trying dense may take where it is predicted to be slower than that
HOLD, LONGEST = 20, 1280  # steps after a switch in which only clear ones follow; doubles with each
PROBE_SECONDS = 0.02  # that a probe takes at the rate that is known
PROBE_SHARE, PROBE_STEPS = 0.03, (10, 30)  # of the time that probes may take; steps between them
REMEMBERED = 100  # switches
FELL = 0.85  # times the step of the check before: shorter compressed steps may be a faster link, and call for a probe


@dataclass(frozen=True)
class Switch:
    step: int
    before: str
    after: str
    reason: str


class Pilot:
    """Everything is the same on all ranks but for the samples."""

    def __init__(
        self, plans: Sequence[Scheme], codecs: Mapping[Scheme, Codecs], link: Link, size: int, wheel: Wheel,
        margin: float = 0.05, first: int = 0, late: bool = False, speaks: bool = False,
    ) -> None:  # fmt: skip
        """`codecs` has what `coding(plan)` costs; `first`: no scheme before this step; `late`: schemes exchange after
        the last bucket; `speaks`: switches are logged here."""
        self.ways: tuple[Scheme | None, ...] = (None, *plans)
        self._names = [DENSE, *(plan.brief for plan in plans)]
        self._codecs = {plan: codecs[coding(plan)] for plan in plans}
        self._size, self._wheel = size, wheel
        self._margin, self._late, self._speaks = margin, late, speaks
        self.samples: list[Sample] = []
        self.choice, self.since, self.hold = 0, 0, HOLD
        self.rates = Rates.of(link)
        self.known = [Known() for _ in self.ways]
        self.wanted: int | None = None
        self._was_dense = False  # whether the steps before the last switch were
        self.last_dense, self.trial = 0, False  # the last dense step; whether dense is in use to be measured again
        self.next_check = max(2, first - 1)
        self.begun, self.earlier = 0, 0.0  # the step after the start or a load; seconds of a step before that
        self.next_probe, self._ask_again = 0, False
        self.compute = Compute(0.0, ())  # of the last steps
        self._steps: list[float] = []  # their seconds, as the ranks agree
        self.predictions: list[float] = []
        self.measured = self.usual = 0.0
        self.reason = "dense until it is measured"
        self.switches: list[Switch] = []

    @property
    def link(self) -> Link:
        return self.rates.link

    # --- what is measured ---

    def note(self, step: int, sample: Sample) -> None:
        """A step that has ended; the first one after a switch is not like the others."""
        if step > self.since + (WARM if self._was_dense else 0):
            self.samples = [*self.samples, sample][-WINDOW:]

    def due(self, step: int) -> bool:
        """Whether the ranks agree at the end of this step."""
        return step >= self.next_check

    def probe_bytes(self, step: int) -> int:
        """How large a probe belongs to this step's check; 0 for none, as dense steps need none."""
        if self.choice == 0 or not (step >= self.next_probe or self.wanted == 0):
            return 0
        return probe_size(self.link.byte, self._size, PROBE_SECONDS)

    def report(self, probe: tuple[float, float] = (0.0, 0.0)) -> Array:
        """What this rank measured, for a maximum over the ranks: negative where the least counts."""
        last = self.samples[-1].parts if self.samples else ()
        seconds = np.zeros(WINDOW)
        seconds[WINDOW - len(self.samples) :] = [sample.seconds for sample in self.samples]
        timed = lower([sample.seconds for sample in self.samples if sample.busy]) or max(seconds)
        rest, busy = (mean(getattr(sample, name) for sample in self.samples) for name in ("rest", "busy"))
        few = [rest, timed, -busy, -probe[0], -probe[1]]
        # Of a table only the rows of this rank's batch have a gradient, so how large its bucket is, is agreed on, too.
        parts = (getattr(part, name) for name in ("ready", "numel", "nbytes") for part in last)
        return np.array([*few, *seconds, *-seconds, *parts], np.float64)

    # --- what follows from it ---

    def decide(self, step: int, agreed: Array, probe_bytes: int = 0) -> None:
        """At the end of a step: how the next ones go, by the numbers that all ranks have agreed on."""
        if not self.samples:
            self.next_check = step + 2
            return
        self._learn(agreed, probe_bytes)
        if self._is_cold(step):
            self.next_check = self.begun + EVERY
            return
        if self.choice == 0:
            self.last_dense = step
        self._predict()
        if probe_bytes:
            self._plan_probe(step)
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
        return first and (not self.earlier or self.measured > COLD * self.earlier)

    def _learn(self, agreed: Array, probe_bytes: int) -> None:
        rest, timed, busy, small, large, *steps = agreed.tolist()
        longest, shortest = steps[:WINDOW], steps[WINDOW : 2 * WINDOW]
        parts = [Part(at, int(n), int(nbytes)) for at, n, nbytes in np.reshape(steps[2 * WINDOW :], (3, -1)).T.tolist()]
        # Ranks end a step together, but for the noise of their clocks and cores.
        self._steps = calm((a - b) / 2 for a, b in zip(longest, shortest, strict=True) if b)
        seconds = mean(self._steps)
        if seconds < FELL * self.measured:
            self.next_probe = 0
        self.measured, self.compute = seconds, Compute(rest, parts)
        self.usual = min(seconds, timed)
        if probe_bytes:
            self._ask_again = self.rates.learn_probe(link_of(-small, -large, probe_bytes, self._size))
        if self.choice == 0 and busy:
            self.rates.learn_dense(-busy, parts, self._size)
        self.samples = []

    def _predict(self) -> None:
        own = self.known[self.choice]
        if self.choice == 0 or not own.is_like(self.compute):
            own.begin(self.compute)
        modelled = [max(LEAST, self._model(way)) for way in range(len(self.ways))]
        # A dense step must be like that by which the link was timed: the others may have had another rate.
        steps = [self.usual] if self.choice == 0 else self._steps
        own.add([seconds / modelled[self.choice] for seconds in steps], self.link.byte)
        tried = [one.ratio for one in self.known[1:] if one.ratio]
        usual = sum(tried) / len(tried) if tried else 1.0
        factors = (one.ratio or (usual if way else 1.0) for way, one in enumerate(self.known))
        self.predictions = [seconds * factor for seconds, factor in zip(modelled, factors, strict=True)]

    def _model(self, way: int) -> float:
        """Backward takes longer while a scheme computes, so each way has its own: as long as the link stays the same,
        its steps are predicted to take what they took."""
        plan, own = self.ways[way], self.known[way]
        if plan is None:
            return dense_step(own.compute or self.compute, self.link, self._size)
        compute = own.compute if own.compute is not None and own.is_like(self.compute) else self.compute
        return sparse_step(plan, self._codecs[plan], compute.late() if self._late else compute, self.link, self._size)

    def _target(self, step: int) -> tuple[int, str]:
        """The way to go, and why."""
        now, dense = self.predictions[self.choice], self.predictions[0]
        best = min(range(1, len(self.ways)), key=self.predictions.__getitem__)
        if self.choice == 0:
            enough = self.predictions[best] * (1 + self._margin) < dense
            return (best, "predicted to be faster") if enough else (0, "no scheme is faster by the margin")
        if dense <= min(now, self.predictions[best]):
            return 0, "predicted to be faster"
        if step - self.last_dense >= max(self.hold, 0 if dense < AGAIN * now else SETTLE / SPENT * dense / now):
            return 0, TRIED
        new = [way for way in range(1, len(self.ways)) if self._untried(way, now)]
        if new:
            return min(new, key=self.predictions.__getitem__), TRIED
        if self.predictions[best] * (1 + self._margin / 2) < now:
            return best, "faster"
        return self.choice, "no other is faster by the margin"

    def _untried(self, way: int, now: float) -> bool:
        return not self.known[way].ratios and self.predictions[way] < min(now * TRY, self.predictions[0])

    def _sure(self, step: int, target: int) -> bool:
        """Whether to switch at once: small gains, what a probe alone promises, and a scheme in use that seems to have
        become slower, are looked at twice."""
        twice = self.wanted == target
        if self.choice and target:
            return twice or step - self.since <= SETTLE + WARM
        if target == 0:
            return twice
        clear = self.trial or self.predictions[0] > CLEAR * self.predictions[target]
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
        self.next_check, self._wheel.plan = step + SETTLE + WARM * self._was_dense, self.ways[target]
        if self._speaks:
            logger.info("auto: from step %d on %s: %s", step, now, why)

    def _plan_probe(self, step: int) -> None:
        if self._ask_again:
            self.next_probe = step + SETTLE
            return
        longer = max(1.0, self.link.byte * all_reduce(PROBE[0], self._size).sent / PROBE_SECONDS)  # the least, if slow
        spent, (low, high) = (1 + REPEAT) * (longer * PROBE_SECONDS + self._size * self.link.latency), PROBE_STEPS
        self.next_probe = step + int(min(longer * high, max(low, spent / max(LEAST, PROBE_SHARE * self.measured))))

    # --- what is told, and saved ---

    def stats(self) -> dict[str, Any]:
        """What was chosen and why: the link's rate in bits a second, seconds of computing, of codecs and of steps."""
        own = zip(self._names[1:], self._codecs.values(), strict=True)
        return {
            "choice": self._names[self.choice],
            "since": self.since,
            "reason": self.reason,
            "rate": 8 / max(self.link.byte, LEAST),
            "latency": self.link.latency,
            "compute": self.compute.seconds,
            "step": self.measured,
            "codecs": {name: one.seconds(self.compute.numel) for name, one in own},
            "predictions": dict(zip(self._names, self.predictions, strict=False)),
            "switches": [asdict(one) for one in self.switches],
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain types only; the same on every rank."""
        return {
            "ways": list(self._names),
            **{name: getattr(self, name) for name in SAVED},
            "known": [one.saved() for one in self.known],
            **self.rates.saved(),
            "switches": [asdict(one) for one in self.switches],
        }

    def check_state(self, state: Mapping[str, Any] | None) -> None:
        """Raises where `load_state_dict` would fail, or could not go on; nothing changes."""
        if state is None or list(state["ways"]) != self._names:
            return
        trial = copy.copy(self)
        trial._wheel, trial.rates = Wheel(), copy.copy(self.rates)
        trial.load_state_dict(state, 0)
        places = [trial.choice, *([] if trial.wanted is None else [trial.wanted])]
        numbers = [value for name, value in (*vars(trial.rates).items(), *state.items()) if name in NUMBERS]
        if len(trial.known) != len(self.ways) or any(place not in range(len(self.ways)) for place in places):
            raise InputError("auto: the state has other schemes than it says")
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in numbers):
            raise InputError("auto: the state has something else where numbers are due")

    def load_state_dict(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Goes on at this step from a saved state; without one, or of other candidates, it starts again."""
        self.samples, self.begun, self.earlier = [], step, 0.0
        if state is None or list(state["ways"]) != self._names:
            if state is not None:
                logger.warning("auto: the saved state is of other candidates; it starts dense")
            self.choice, self.since, self.last_dense, self.wanted, self.trial = 0, step, step, None, False
            self.rates.unmatched, self._wheel.plan, self.next_check = False, None, step + 2
            return
        for name in SAVED:
            setattr(self, name, state[name])
        self.known = [Known.loaded(one) for one in state["known"]]
        self.rates = self.rates.loaded(dict(state))
        self.switches = [Switch(**one) for one in state["switches"]]
        self._wheel.plan, self.earlier = self.ways[self.choice], self.measured
        self.begun = step if self.earlier else 0


SAVED = (
    "choice", "since", "hold", "wanted", "last_dense", "trial", "next_check", "next_probe", "measured", "reason",
)  # fmt: skip
NUMBERS = {"since", "hold", "last_dense", "next_check", "next_probe", "measured", "latency", "byte", "probed", "bias"}


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
