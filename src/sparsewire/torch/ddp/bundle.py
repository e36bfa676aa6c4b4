"""Buckets of few entries travel in one message with the bucket after them.

A message of its own costs every rank about a millisecond, and several on busy cores; a few kilobytes take less on a
link of 100 Mbit/s. The rule goes by sizes and the scheme alone, so all ranks bundle alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsewire.codecs.scheme import Scheme
from sparsewire.exchange import Exchange
from sparsewire.training.layout import Buffer, Slice

MOST = 4096  # entries that may wait: some 8 kB


class Bundle:
    """The buckets of a step that wait for the next one."""

    def __init__(self) -> None:
        self._waiting: list[Buffer] = []
        self._entries = 0

    def add(self, buffer: Buffer, entries: int) -> list[Buffer]:
        """What is to be put now: nothing yet, or this bucket and all that waited."""
        self._waiting.append(buffer)
        self._entries += entries
        return [] if self._entries < MOST else self.rest()

    def rest(self) -> list[Buffer]:
        """All that waited."""
        waiting, self._waiting, self._entries = self._waiting, [], 0
        return waiting


def most_entries(slices: Sequence[Slice], plan: Scheme | None) -> int:
    """How many entries a bucket sends at the most; one that cannot wait counts as `MOST`."""
    if plan is None or not (isinstance(plan.exchange, Exchange) and plan.exchange.carries):
        return MOST
    counts = [plan.select.largest_of(item.size) for item in slices]
    return sum(MOST if count is None else count for count in counts)
