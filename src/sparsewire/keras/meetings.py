"""`Meetings`: what the ranks of a `fit` tell each other between their steps, so that none waits for one that has ended.

A rank meets the others before it trains on batches, at the end of an epoch, and at the end of its training. Wherever
one of them is, all see it at the same meeting: if one has ended its epoch, all end theirs, and if one has ended its
training, so do all. Ranks with more batches than others leave the rest of an epoch out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

BATCHES, EPOCH, END = "batches", "epoch", "end"
Gather = Callable[[bytes], Sequence[bytes]]


class Meetings:
    """One rank's part in them. `gather` is an all_gather."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather
        self.epoch_over = False
        self.training_over = False  # for some rank, and so for all

    def begin_epoch(self) -> None:
        self.epoch_over = self.training_over

    def batches(self, mine: int) -> int:
        """On how many batches all ranks train next; 0: the epoch is over."""
        if self.epoch_over:
            return 0
        least = min(said[1] for said in self._meet(BATCHES if mine else EPOCH, mine))
        self.epoch_over |= not least
        return least

    def end_epoch(self) -> None:
        """This rank's epoch is over."""
        if not self.epoch_over:
            self._meet(EPOCH, 0)
            self.epoch_over = True

    def means(self, logs: Mapping[str, Any], stops: bool) -> tuple[dict[str, float], bool]:
        """The metrics, each a mean over the ranks that have it, and whether any rank stops; after `end_epoch`."""
        if self.training_over:
            return {}, True
        numbers = {name: float(value) for name, value in logs.items() if _is_number(value)}
        said = [json.loads(part) for part in self._gather(json.dumps([numbers, bool(stops)]).encode())]
        names = dict.fromkeys(name for theirs, _ in said for name in theirs)
        by_name = {name: [theirs[name] for theirs, _ in said if name in theirs] for name in names}
        return {name: math.fsum(them) / len(them) for name, them in by_name.items()}, any(stops for _, stops in said)

    def end_training(self) -> None:
        """This rank begins no epoch any more."""
        if not self.training_over:
            self._meet(END, 0)
            self.training_over = True

    def _meet(self, place: str, batches: int) -> list[tuple[str, int]]:
        said = [tuple(json.loads(part)) for part in self._gather(json.dumps([place, batches]).encode())]
        places = [there for there, _ in said]
        if END in places and place != END:
            self.training_over = self.epoch_over = True
        return said


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
