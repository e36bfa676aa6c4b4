"""`Guard`: whether a training runs away, which all ranks find out together.

1. In every 16th step each rank measures the norms of its residual and of its gradient, over all compressed parameters,
   and of what travels dense. Their means over the ranks travel with what is dense in that step.
2. The usual norm of a gradient is the geometric mean of those that were measured, as high as it has ever been: a
   gradient that shrinks as the loss does is no sign of anything.
3. A residual of more than 300 times the usual gradient runs away. No training that ended well came near, and those that
   broke went beyond it by orders of magnitude (docs/results/guard.jsonl).
4. Where units die, the gradients of their weights vanish, at first with some batches only, and those of the last biases
   stay. Beside what travels dense, a gradient of less than 1/30 of the usual makes every 4th of the next 64 steps a
   check; if it is as small in one of them, that is an alarm. Where the loss vanishes both shrink alike.
5. So is a loss scale below 1. 20 steps in a row that are not finite are said as well, but nothing follows from them: a
   step that is not finite changes no state.

The ranks decide by numbers that they have agreed on, so all decide alike. What an alarm does is
`Settings.on_divergence`: "warn" says it, once; "dense" also makes the next 128 steps dense, the first of which sends
what waits, and twice as many each time it happens again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.kernels.device import of
from sparsewire.kernels.device.contract import Dense

ACTIONS = ("warn", "dense", None)
EVERY = 16  # steps
LIMIT = 300.0  # of the residual's norm, in those of a usual gradient
VANISHED = 1 / 30  # of a usual gradient, beside what travels dense
CLOSE, LOOK = 4, 64  # after a check at which it has vanished: every 4th of so many steps
MEMORY = 16  # checks that the usual gradient is a mean of
DENSE_STEPS = 128  # after the first alarm
LOST = 20  # steps in a row that are not finite
LARGEST = 1e30  # what a message says of a norm, so that the ranks' sum is finite in float32
SMALLEST = 1e-30
Norms = tuple[float, ...]  # of a residual, of its gradient, and of what travels dense


@dataclass
class Usual:
    """The geometric mean of what was measured, as high as it has ever been; as a logarithm to base 2."""

    level: float = 0.0
    checks: int = 0

    def ratio(self, value: float) -> float:
        """A value in units of the usual one; 1 as long as nothing is known."""
        return value / 2.0**self.level if self.checks else 1.0

    def follow(self, value: float) -> None:
        self.checks += 1
        rise = math.log2(max(value, SMALLEST)) - self.level
        if self.checks == 1 or rise > 0:
            self.level += rise * max(1 / self.checks, 1 / MEMORY)


logger = logging.getLogger("sparsewire")


class Guard:
    """What the ranks have agreed on so far; `rank` 0 is the one that says it."""

    def __init__(self, action: str | None, remembers: bool, rank: int) -> None:
        self.action, self._watches, self._speaks = action, action is not None and remembers, rank == 0
        self._gradient, self._beside = Usual(), Usual()  # a gradient, and as a multiple of what travels dense
        self._close, self._lost = 0, 0  # until when checks are close; steps in a row that were not finite
        self._ratio, self._until, self._alarms = 0.0, 0, list[dict[str, Any]]()
        self.measures: tuple[float, ...] = ()  # in this step, by all ranks

    # --- in a step ---

    def due(self, step: int, sparse: bool) -> bool:
        every = CLOSE if step < self._close else EVERY
        return self._watches and sparse and step % every == every - 1

    def is_dense(self, step: int) -> bool:
        """Whether an alarm has made this step dense."""
        return step < self._until

    def message(self, norms: Norms, scale: float, others: Sequence[Array]) -> list[Array]:
        """What travels with the arrays that are averaged, in the number type of one of them."""
        measures = [*(min(norm, LARGEST) for norm in norms), float(scale < 1)]
        return [np.array(measures, others[0].dtype if others else np.float64)]

    def note(self, measures: Iterable[float] = ()) -> None:
        """The ranks' mean of their messages; empty if the step has none."""
        self.measures = tuple(map(float, measures))

    def clear(self) -> None:
        """Ends a step."""
        self.measures = ()

    def follow(self, step: int, finite: bool) -> None:
        """After a step that counted, the same on every rank."""
        if not self._watches:
            return
        self._lost = 0 if finite else self._lost + 1
        if self._lost == LOST and self._speaks:
            logger.warning(
                "step %d: %d steps in a row were not finite: the loss, or its scale, has diverged", step, LOST
            )
        if finite and self.measures:
            self._check(step, *self.measures)

    def _check(self, step: int, residual: float, gradient: float, dense: float, collapsed: float) -> None:
        if gradient > SMALLEST:
            self._gradient.follow(gradient)
        self._ratio = self._gradient.ratio(residual) if self._gradient.checks else 0.0
        died = dense > SMALLEST and self._has_died(step, gradient / dense)
        if self._ratio > LIMIT:
            self._alarm(step, f"the residual is {self._ratio:.2g} times as large as a usual gradient (over {LIMIT:g})")
        elif died:
            self._alarm(step, "the gradients of compressed parameters have vanished, and those of the others have not")
        elif collapsed:
            self._alarm(step, "the loss scale has fallen below 1")

    def _has_died(self, step: int, beside: float) -> bool:
        """Whether a gradient, as a multiple of what travels dense, has vanished for the second time."""
        vanished, again = self._beside.ratio(beside) < VANISHED, step < self._close
        self._beside.follow(beside)
        if vanished:
            self._close = step + 1 + LOOK
        return vanished and again

    def _alarm(self, step: int, reason: str) -> None:
        if self.action == "dense":
            self._until = step + 1 + DENSE_STEPS * 2 ** len(self._alarms)
        elif self._alarms:
            return
        self._alarms.append({"step": step, "reason": reason})
        if self._speaks and len(self._alarms) == 1:
            goes_on = f"; the next {DENSE_STEPS} steps are dense" if self.action == "dense" else ""
            logger.warning("step %d: the training seems to diverge: %s%s. %s", step, reason, goes_on, self._advice())

    def _advice(self) -> str:
        more = "" if self.action == "dense" else ', or on_divergence="dense" to go on dense for a while'
        return (
            "Compare with a dense run; take a lower learning rate, a memory that holds the optimizer's momentum "
            f"(leave memory= out, and give optimizer=), a larger coverage= or ratio{more}"
        )

    # --- from step to step ---

    def rescale(self, factor: float) -> None:
        """Norms are in the loss's scale."""
        if self._gradient.checks:
            self._gradient.level += math.log2(factor)

    def stats(self) -> dict[str, Any]:
        if not self._watches:
            return {}
        return {"guard": {"ratio": self._ratio, "dense_until": self._until, "alarms": [*self._alarms]}}

    def saved(self) -> dict[str, Any]:
        return {
            "gradient": [self._gradient.level, self._gradient.checks],
            "beside": [self._beside.level, self._beside.checks],
            "close": self._close,
            "until": self._until,
            "alarms": [[alarm["step"], alarm["reason"]] for alarm in self._alarms],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Takes over what `read_guard` gave."""
        self._gradient, self._beside = Usual(*saved["gradient"]), Usual(*saved["beside"])
        self._close, self._until = saved["close"], saved["until"]
        self._lost, self._ratio, self.measures = 0, 0.0, ()
        self._alarms = [{"step": step, "reason": reason} for step, reason in saved["alarms"]]


def read_guard(saved: Mapping[str, Any], factor: float = 1.0) -> dict[str, Any]:
    """What `saved` gave, checked, at another loss scale; a state without it begins anew."""
    gradient, beside = (_read_usual(saved.get(name, [0.0, 0])) for name in ("gradient", "beside"))
    if gradient[1]:
        gradient[0] += math.log2(factor)
    counts = {name: saved.get(name, 0) for name in ("close", "until")}
    if not all(type(count) is int and count >= 0 for count in counts.values()):
        raise InputError(f"the state has {counts!r} for the guard against divergence")
    alarms = saved.get("alarms", [])
    if not all(type(step) is int and isinstance(reason, str) for step, reason in alarms):
        raise InputError(f"the state has {alarms!r} for alarms of the guard against divergence")
    listed = [[step, reason] for step, reason in alarms]
    return {"gradient": gradient, "beside": beside, **counts, "alarms": listed}


def _read_usual(saved: Any) -> list[Any]:
    level, checks = saved
    if type(level) not in (int, float) or not abs(level) < 1100 or type(checks) is not int or checks < 0:
        raise InputError(f"the state has {saved!r} for what is usual to the guard against divergence")
    return [float(level), checks]


def norms_of(parts: Iterable[tuple[Dense, Dense]], others: Iterable[Dense]) -> Norms:
    """The norms of residuals and gradients, each part a pair of both, and of other arrays; a pass over each."""
    measured = [(of(kept).energy(kept), of(x).energy(x)) for kept, x in parts]
    dense = [of(x).energy(x) for x in others]
    energies = [(kept.read(), x.read()) for kept, x in measured]
    sums = (kept for kept, _ in energies), (x for _, x in energies), (x.read() for x in dense)
    residual, gradient, rest = (math.sqrt(math.fsum(squares)) for squares in sums)
    return residual, gradient, rest
