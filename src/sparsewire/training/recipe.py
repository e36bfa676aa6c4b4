"""`Recipe`: what a training does where the user leaves it open: memory, ratio, its schedule, and the selection.

1. The memory goes by the optimizer. Behind SGD with momentum μ it is gain(momentum=μ), which equals SGD when everything
   is sent. Other optimizers get residual; Adam and its relatives then work without their first moment.
2. The ratio goes by coverage = ratio · steps, how often each coordinate is sent on average: no ratio is safe by itself,
   a coverage of 20 was. ratio = coverage / total_steps, within 0.1 % … 100 %. Without total_steps it is 5 %: a coverage
   of 20 after 400 steps.
3. For SGD the ratio is constant and each parameter selects for itself, so that the exchange overlaps with backward. For
   Adam's family one threshold over all parameters and a ratio that falls were better; total_steps is needed for that.
4. Muon takes 10 % at least: nothing that was measured holds its accuracy below.

What the user names is taken as it is. A run that is longer than announced keeps its last ratio.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Scheme, Spec, scheme
from sparsewire.errors import InputError

from .named import SELECT, complete, look_at, names_memory, names_ratio
from .schedule import Ratios, falling_ratio, is_whole

COVERAGE = 20.0
LEAST = 0.001  # ratio
WITHOUT_STEPS = 0.05  # the ratio where total_steps is not known
LATE = 1_000_000  # a step, where the end is not known


@dataclass(frozen=True)
class Family:
    """How optimizers of one kind are served: the smallest ratio, what selects, and whether the ratio falls."""

    least: float = LEAST
    select_per: str = "parameter"
    falls: bool = False


FAMILIES = {
    "sgd": Family(),  # moves by the rate times what it is handed
    "adaptive": Family(select_per="model", falls=True),  # divides by a second moment; its first one is left out
    "muon": Family(least=0.1),  # makes a matrix orthogonal
    "tables": Family(),  # takes sparse gradients alone, which are sent whole
}


@dataclass(frozen=True)
class OptimizerFacts:
    """What a host tells of an optimizer: its family, SGD's momentum, or why it is refused and what to write."""

    name: str
    family: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    refused: str = ""

    def __str__(self) -> str:
        settings = [f"momentum={self.momentum:g}"] * bool(self.momentum) + ["nesterov=True"] * self.nesterov
        return f"{self.name}({', '.join(settings)})" if settings else self.name


@dataclass(frozen=True)
class Recipe:
    """A complete choice; `repr()` is the call that says all of it, `text()` one line for a log.

    >>> Recipe.of([OptimizerFacts("SGD", momentum=0.9)], total_steps=1000)
    attach(model, "topk(ratio=0.02) | memory=gain(momentum=0.9)", optimizer=optimizer)
    """

    scheme: Spec
    select_per: str = "parameter"
    ratio_schedule: Ratios | None = None
    optimizers: tuple[OptimizerFacts, ...] = ()
    ratio: float | None = None  # on average over the run, where the recipe has chosen it
    total_steps: int | None = None
    coverage: float = COVERAGE
    function: str = field(default="attach(model", compare=False)

    @classmethod
    def of(
        cls, optimizers: Sequence[OptimizerFacts] = (), spec: Spec | None = None, *, total_steps: int | None = None,
        coverage: float = COVERAGE, ratio: float | None = None, memory: str | Memory | None = None,
        select_per: str | None = None, ratio_schedule: Ratios | None = None,
    ) -> Recipe:  # fmt: skip
        """The recipe for these optimizers and what the user has fixed; None is open."""
        check_numbers(total_steps, coverage, ratio)
        facts, named = tuple(optimizers), spec is not None and names_memory(spec)
        if memory is not None and named:
            raise InputError(f"the memory is given twice, in {spec!r} and as memory={memory}: leave one out")
        family = _together(facts)
        chosen = _open_ratio(spec, total_steps, coverage, ratio, family)
        held = None if named else memory or _memory_for(facts)
        full = complete(SELECT if spec is None else spec, held, chosen)
        plan = look_at(full)
        schedule = ratio_schedule
        if held is not None:  # a scheme that names its memory is complete
            select_per = select_per or (family.select_per if _comparable(plan) else "parameter")
            schedule = schedule or _falling(family, total_steps, chosen)
        check_served(facts, plan, schedule, total_steps)
        return cls(full, select_per or "parameter", schedule, facts, chosen, total_steps, coverage)

    def __repr__(self) -> str:
        settings = [f"select_per={self.select_per!r}".replace("'", '"')] * (self.select_per != "parameter")
        settings += [f"ratio_schedule={self.ratio_schedule!r}"] * (self.ratio_schedule is not None)
        behind = {0: "None", 1: "optimizer"}.get(len({facts.name for facts in self.optimizers}), "[…]")
        return f"{self.function}, {', '.join([quoted(self.scheme), f'optimizer={behind}', *settings])})"

    def text(self) -> str:
        """One line: for whom, what, and why this ratio."""
        behind = " and ".join(map(str, self.optimizers)) or "an optimizer that is not known"
        return f"for {behind}: {self!r}{self._why()}"

    def _why(self) -> str:
        if self.ratio is None:
            return ""
        if self.total_steps is not None:
            times = self.ratio * self.total_steps
            return f"; coverage {times:.3g}: how often each coordinate is sent in {self.total_steps} steps"
        later = max(LEAST, COVERAGE / 10_000)
        return (f"; with total_steps= the ratio would go by the run's length: {COVERAGE:g}/total_steps, "
                f"{later:.1%} for 10,000 steps")  # fmt: skip


def check_numbers(total_steps: Any, coverage: Any, ratio: Any = None) -> None:
    """Refuses what is no number of steps, no coverage or no ratio."""
    if total_steps is not None and not (is_whole(total_steps) and total_steps >= 1):
        raise InputError(f"total_steps is the number of optimizer steps of the run, 1 or more, not {total_steps!r}")
    if not (_is_number(coverage) and coverage > 0):
        raise InputError(f"coverage is a number above 0, how often each coordinate is sent, not {coverage!r}")
    if ratio is not None and not (_is_number(ratio) and 0 < ratio <= 1):
        raise InputError(f"ratio lies in 0 < ratio ≤ 1, not {ratio!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def ratio_for(total_steps: int | None, coverage: float = COVERAGE, least: float = LEAST) -> float:
    """The ratio of a run: coverage / total_steps, within 0.1 % … 100 %.

    >>> ratio_for(1000), ratio_for(100_000), ratio_for(10), ratio_for(None)
    (0.02, 0.001, 1.0, 0.05)
    """
    wanted = WITHOUT_STEPS if total_steps is None else coverage / total_steps
    return float(f"{min(1.0, max(least, wanted)):.3g}")


def _open_ratio(
    spec: Spec | None, total_steps: int | None, coverage: float, ratio: float | None, family: Family
) -> float | None:
    """The ratio that goes into the scheme; None where that has its own."""
    if spec is not None and names_ratio(spec):
        if ratio is not None:
            raise InputError(f"ratio={ratio:g} beside the scheme {spec!r}, which says what is selected: leave one out")
        return None
    if ratio is not None:
        return float(ratio)
    if spec is not None and total_steps is None:
        return None  # a selection without settings has its own default
    return ratio_for(total_steps, coverage, family.least)


def _together(optimizers: Sequence[OptimizerFacts]) -> Family:
    """One rule for all of a model's optimizers: the most careful ratio, and what suits each of them."""
    families = [FAMILIES[facts.family] for facts in optimizers if facts.family != "tables" and not facts.refused]
    falls = bool(families) and all(family.falls for family in families)
    per = "model" if falls else "parameter"
    return Family(max((family.least for family in families), default=LEAST), per, falls)


def _memory_for(optimizers: Sequence[OptimizerFacts]) -> str:
    moving = [facts for facts in optimizers if facts.family == "sgd" and facts.momentum and not facts.refused]
    if not moving:
        return "residual"
    first = moving[0]
    for facts in optimizers:
        if facts.family not in ("sgd", "tables") and not facts.refused:
            raise InputError(
                f"no memory serves {first} and {facts.name} at once: let the parameters of one of them travel dense, "
                "attach(…, exclude=[names]), or set SGD's momentum to 0"
            )
        if facts.momentum and (facts.momentum, facts.nesterov) != (first.momentum, first.nesterov):
            raise InputError(f"one memory holds one momentum, but there are {first} and {facts}: make them equal")
    return f"gain(momentum={first.momentum!r}{', nesterov=true' * first.nesterov})"


def _falling(family: Family, total_steps: int | None, ratio: float | None) -> falling_ratio | None:
    if not family.falls or total_steps is None or ratio is None or ratio >= 1:
        return None
    return falling_ratio(int(total_steps), ratio)


def _comparable(plan: Scheme) -> bool:
    """Whether tensors can compete for one selection."""
    return plan.transform.is_identity and bool(plan.select.largest_of(1))


def check_served(
    optimizers: Sequence[OptimizerFacts], plan: Scheme, schedule: Ratios | None = None, total_steps: int | None = None
) -> None:
    """Refuses optimizers that take no late sums, and selections that are too small for one. Without a memory nothing
    is late."""
    if not plan.memory.buffers:
        return
    for facts in optimizers:
        if facts.refused:
            raise InputError(f"{facts.name}: {facts.refused}")
        if facts.family == "muon":
            _check_muon(facts, plan, schedule(total_steps or LATE) if callable(schedule) else None)


def _check_muon(facts: OptimizerFacts, plan: Scheme, last: float | None) -> None:
    """Refuses selections of less than 10 %; `last` is the ratio that a schedule ends with."""
    least = FAMILIES["muon"].least
    ratio = getattr(plan.select, "ratio", None) if last is None else last
    if plan.select.id != "nonzero" and (ratio is None or ratio < least):
        what = f"{plan.select}" if last is None else f"ratio_schedule, which ends at {last:g}"
        raise InputError(
            f"{facts.name} loses accuracy where less than {least:.0%} is sent, whatever the memory, and {what} may "
            f"send less; write attach(model, optimizer=…, ratio={least:g})"
        )


def quoted(spec: Spec) -> str:
    """A scheme as a call has it, with its memory."""
    if isinstance(spec, str):
        return f'"{spec}"'
    words, memory = scheme(spec).brief, scheme(spec).memory
    return f'"{words}"' if "memory=" in words else f'"{words} | memory={memory.brief}"'
