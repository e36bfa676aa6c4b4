"""`LocalRecipe`: the scheme of local steps, chosen where the user names none.

Changes of the weights have their optimizer's momentum in them already, so error feedback alone keeps what is not sent,
decayed by 0.95 a round, and a coordinate is divided by √(ranks × senders). Where that was measured, sending each
coordinate 2.5 times on average in all rounds was level with sending everything; 5 is the default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sparsewire.codecs.scheme import Spec

from ..recipe import check_numbers, quoted, ratio_for
from .round_schedule import RoundSchedule

COVERAGE = 5.0  # how often each coordinate is sent in all rounds
REST = "memory=residual(decay=0.95) | exchange=allgather(mean=sqrt)"
CALL = "local_steps(model, optimizer"


@dataclass(frozen=True)
class LocalRecipe:
    """A scheme and its rounds; `repr()` is the call that says them, `text()` one line for a log.

    >>> LocalRecipe.of("sbc(level=2)", every=10)
    local_steps(model, optimizer, "sbc(level=2)", every=10)
    """

    scheme: Spec
    every: Any = None
    rounds: int | None = None  # of the run, by which the ratio was chosen
    chosen: bool = False
    coverage: float = COVERAGE
    function: str = field(default=CALL, compare=False)

    @classmethod
    def of(
        cls, spec: Spec | None = None, every: Any = None, total_steps: int | None = None, coverage: float = COVERAGE,
        function: str = CALL,
    ) -> LocalRecipe:  # fmt: skip
        """The recipe for a run of so many optimizer steps on each rank; None is open."""
        check_numbers(total_steps, coverage)
        if spec is not None:
            return cls(spec, every, function=function)
        rounds = None if total_steps is None or every is None else count_rounds(total_steps, RoundSchedule(every))
        scheme = f"topk(ratio={ratio_for(rounds, coverage)!r}) | {REST}"
        return cls(scheme, every, rounds, True, coverage, function)

    def __repr__(self) -> str:
        rest = [] if self.every is None else [f"every={'…' if callable(self.every) else repr(self.every)}"]
        return f"{self.function}, {', '.join([quoted(self.scheme), *rest])})"

    def text(self) -> str:
        """One line: what, and why this ratio."""
        if not self.chosen:
            return repr(self)
        if self.rounds is None:
            return f"{self!r}; with total_steps= the ratio would go by the run's length: {COVERAGE:g}/rounds"
        times = self.rounds * ratio_for(self.rounds, self.coverage)
        return f"{self!r}; coverage {times:.3g}: how often each coordinate is sent in {self.rounds} rounds"


def count_rounds(total_steps: int, schedule: RoundSchedule) -> int:
    """The rounds in which these steps end."""
    if isinstance(schedule.every, int):
        return -(-total_steps // schedule.every)
    rounds = steps = 0
    while steps < total_steps:
        steps += schedule(rounds)
        rounds += 1
    return rounds
