"""`Guard`: whether a training runs away, which all ranks find out together.

1. In every 16th step each rank measures the norms of its residual and of its gradient, over all compressed parameters.
   Their means over the ranks travel with what is dense in that step.
2. The usual norm of a gradient is the geometric mean of those that were measured, as high as it has ever been: a
   gradient that shrinks as the loss does is no sign of anything.
3. A residual of more than 300 times the usual gradient runs away. No training that ended well came near, and those that
   broke went beyond it by orders of magnitude (docs/results/guard.json).
4. So does a loss scale below 1. 20 steps in a row that are not finite are said as well, but nothing follows from
   them: a step that is not finite changes no state.

The ranks decide by numbers that they have agreed on, so all decide alike. What an alarm does is
`Settings.on_divergence`: "warn" says it, once; "dense" also makes the next 128 steps dense, the first of which sends
what waits, and twice as many each time it happens again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.kernels.device import of
from sparsewire.kernels.device.contract import Dense

ACTIONS = ("warn", "dense", None)
EVERY = 16  # steps
LIMIT = 300.0  # of the residual's norm, in those of a usual gradient
MEMORY = 16  # checks that the usual gradient is a mean of
DENSE_STEPS = 128  # after the first alarm
LOST = 20  # steps in a row that are not finite
LARGEST = 1e30  # what a message says of a norm, so that the ranks' sum is finite in float32
SMALLEST = 1e-30
Norms = tuple[float, float]  # of a residual and of a gradient

logger = logging.getLogger("sparsewire")


class Guard:
    """What the ranks have agreed on so far; `rank` 0 is the one that says it."""

    def __init__(self, action: str | None, remembers: bool, rank: int) -> None:
        self.action, self._watches, self._speaks = action, action is not None and remembers, rank == 0
        self._usual, self._checks = 0.0, 0  # log2 of a norm; how many were measured
        self._lost = 0  # steps in a row that were not finite; not saved
        self._ratio, self._until, self._alarms = 0.0, 0, list[dict[str, Any]]()
        self.told: tuple[float, ...] = ()  # in this step, by all ranks

    # --- in a step ---

    def due(self, step: int, sparse: bool) -> bool:
        return self._watches and sparse and step % EVERY == EVERY - 1

    def is_dense(self, step: int) -> bool:
        """Whether an alarm has made this step dense."""
        return step < self._until

    def message(self, norms: Norms, scale: float, others: Sequence[Array]) -> list[Array]:
        """What travels with the arrays that are averaged, in the number type of one of them."""
        told = [*(min(norm, LARGEST) for norm in norms), float(scale < 1)]
        return [np.array(told, others[0].dtype if others else np.float64)]

    def note(self, told: Iterable[float] = ()) -> None:
        """The ranks' mean of their messages; empty if the step has none."""
        self.told = tuple(map(float, told))

    def clear(self) -> None:
        """Ends a step."""
        self.told = ()

    def follow(self, step: int, finite: bool) -> None:
        """After a step that counted, the same on every rank."""
        if not self._watches:
            return
        self._lost = 0 if finite else self._lost + 1
        if self._lost == LOST and self._speaks:
            logger.warning(
                "step %d: %d steps in a row were not finite: the loss, or its scale, has diverged", step, LOST
            )
        if finite and self.told:
            self._check(step, *self.told)

    def _check(self, step: int, residual: float, gradient: float, collapsed: float) -> None:
        if self._checks:
            self._ratio = residual / 2.0**self._usual
        level = math.log2(max(gradient, SMALLEST))
        self._checks += 1
        rise = level - self._usual
        if self._checks == 1 or rise > 0:
            self._usual += rise * max(1 / self._checks, 1 / MEMORY)
        if self._ratio > LIMIT:
            self._alarm(step, f"the residual is {self._ratio:.2g} times as large as a usual gradient (over {LIMIT:g})")
        elif collapsed:
            self._alarm(step, "the loss scale has fallen below 1")

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
        if self._checks:
            self._usual += math.log2(factor)

    def stats(self) -> dict[str, Any]:
        if not self._watches:
            return {}
        return {"guard": {"ratio": self._ratio, "dense_until": self._until, "alarms": [*self._alarms]}}

    def saved(self) -> dict[str, Any]:
        return {
            "usual": self._usual,
            "checks": self._checks,
            "until": self._until,
            "alarms": [[alarm["step"], alarm["reason"]] for alarm in self._alarms],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Takes over what `read_guard` gave."""
        self._usual, self._checks, self._until = saved["usual"], saved["checks"], saved["until"]
        self._lost, self._ratio, self.told = 0, 0.0, ()
        self._alarms = [{"step": step, "reason": reason} for step, reason in saved["alarms"]]


def read_guard(saved: Mapping[str, Any], factor: float = 1.0) -> dict[str, Any]:
    """What `saved` gave, checked, at another loss scale; a state without it begins anew."""
    usual, counts = saved.get("usual", 0.0), {name: saved.get(name, 0) for name in ("checks", "until")}
    alarms = saved.get("alarms", [])
    known = type(usual) in (int, float) and abs(usual) < 1100
    if not known or not all(type(count) is int and count >= 0 for count in counts.values()):
        raise InputError(f"the state has {dict(saved)!r} for the guard against divergence")
    if not all(type(step) is int and isinstance(reason, str) for step, reason in alarms):
        raise InputError(f"the state has {alarms!r} for alarms of the guard against divergence")
    moved = float(usual) + (math.log2(factor) if counts["checks"] else 0.0)
    return {"usual": moved, **counts, "alarms": [[step, reason] for step, reason in alarms]}


def norms_of(parts: Iterable[tuple[Dense, Dense]]) -> Norms:
    """The norms of residuals and gradients, each part a pair of both; a pass over each, wherever they lie."""
    measured = [(of(kept).energy(kept), of(x).energy(x)) for kept, x in parts]
    energies = [(kept.read(), x.read()) for kept, x in measured]
    return math.sqrt(math.fsum(kept for kept, _ in energies)), math.sqrt(math.fsum(x for _, x in energies))
