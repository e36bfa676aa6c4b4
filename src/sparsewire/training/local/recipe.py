"""The scheme of local steps where the user names none.

Changes of the weights have their optimizer's momentum in them already, so error feedback alone keeps what is not sent,
decayed by 0.95 a round, and a coordinate is divided by √(ranks × senders). Where that was measured, sending each
coordinate 2.5 times on average in all rounds was level with sending everything; 5 is the default.
"""

from __future__ import annotations

from typing import Any

from ..recipe import ratio_for
from .round_schedule import RoundSchedule

COVERAGE = 5.0  # how often each coordinate is sent in all rounds
REST = "memory=residual(decay=0.95) | exchange=allgather(mean=sqrt)"


def local_scheme(total_steps: int | None, every: Any, coverage: float = COVERAGE) -> str:
    """The scheme for a run of so many optimizer steps on each rank.

    >>> local_scheme(1000, 10)
    'topk(ratio=0.05) | memory=residual(decay=0.95) | exchange=allgather(mean=sqrt)'
    """
    rounds = None if total_steps is None or every is None else count_rounds(total_steps, RoundSchedule(every))
    return f"topk(ratio={ratio_for(rounds, coverage)!r}) | {REST}"


def count_rounds(total_steps: int, schedule: RoundSchedule) -> int:
    """The rounds in which these steps end."""
    if isinstance(schedule.every, int):
        return -(-total_steps // schedule.every)
    rounds = steps = 0
    while steps < total_steps:
        steps += schedule(rounds)
        rounds += 1
    return rounds
