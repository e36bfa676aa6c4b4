"""What an exchange costs by the α–β model: bytes, rounds and entries from the sizes alone, and seconds from them.

P ranks have full-duplex links. A round costs the latency α whatever it carries, a byte β seconds, a byte that is added
up γ. On its busiest rank an exchange then takes

    T = local + Σ seconds per entry × entries coded + γ · reduced + α · rounds + β · max(sent, received)

where `local` is what a step takes on one rank alone (selection, encoding, the dense mean), measured, and the entries
are those beyond it. Where ranks share cores, computing takes so much longer, unless the others wait for one (`alone`).

k is the number of entries that a rank selects, d the number of elements, m(n, d) the bytes of a coded message of n
entries out of d, and u the entries of the union of the ranks' supports: k where they are identical, min(d, Pk) where
they are disjoint. What a collective moves is in volume.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..scheme import Scheme
from . import volume
from .coded import Coded, Speeds
from .exchange_steps import IDENTICAL
from .volume import Volume


@dataclass(frozen=True)
class Link:
    """α, seconds per round; β, seconds per byte; and the bytes that a link which is limited lets pass at once."""

    latency: float
    byte: float
    burst: float = 0.0


@dataclass(frozen=True)
class Cost:
    """The busiest rank's volume, and by speed the entries that it codes or adds beyond those of its own selection."""

    volume: Volume
    entries: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False

    def decode_seconds(self, speeds: Speeds, sharing: float = 1.0) -> float:
        """What every rank decodes: the others' messages, or the mean that one rank made of them."""
        return sharing * self._coding(speeds, "decode_mean" if self.alone else "decode")

    def seconds(self, link: Link, speeds: Speeds, local: float, sharing: float = 1.0, ring: bool = True) -> float:
        """T; `sharing` is the number of ranks per core, at least 1."""
        work = local + self._coding(speeds, *self.entries) + speeds.reduce * self.volume.reduced
        rounds = self.volume.rounds if ring else self.volume.fewest
        moved = max(0.0, max(self.volume.sent, self.volume.received) - link.burst)
        return (1.0 if self.alone else sharing) * work + link.latency * rounds + link.byte * moved

    def _coding(self, speeds: Speeds, *names: str) -> float:
        return sum(getattr(speeds, name) * self.entries.get(name, 0.0) for name in names)


@dataclass(frozen=True)
class Load:
    """d, k, how the ranks' supports lie, and what their codecs make of them."""

    numel: int
    entries: int
    supports: str
    coded: Coded

    def union(self, size: int) -> int:
        return self.entries if self.supports == IDENTICAL else min(self.numel, size * self.entries)

    def message(self, entries: float, numel: float) -> float:
        return self.coded.message(round(entries), math.ceil(numel))


def dense(load: Load, size: int) -> Cost:
    """One all_reduce of the d float32 themselves."""
    return Cost(volume.all_reduce(4.0 * load.numel, size))


def allgather(exchange: Any, load: Load, size: int) -> Cost:
    """One all_gather of messages m(k, d). Every rank decodes (P−1)k entries and adds them up: all grows with P."""
    others = (size - 1) * load.entries
    message = load.message(load.entries, load.numel)
    return Cost(volume.all_gather([message] * size), {"decode": others, "add": others})


def root(exchange: Any, load: Load, size: int) -> Cost:
    """P−1 messages m(k, d) to the root, and a broadcast of the mean of u entries, which it codes without loss, alone.

    The busiest rank is the root: (P−1)·m in, ⌈log2 P⌉ × the mean out.
    """
    union, others = load.union(size), (size - 1) * load.entries
    inward = volume.message(received=(size - 1) * load.message(load.entries, load.numel))
    mean = load.coded.mean(union, load.numel, load.supports == IDENTICAL)
    work = {"decode": others, "encode_mean": union - load.entries, "decode_mean": union}
    return Cost(inward + volume.broadcast(mean, size), work, alone=True)


Model = Callable[[Any, Load, int], Cost]
MODELS: dict[str, Model] = {"allgather": allgather, "root": root}


def predict(plan: Scheme | None, load: Load, size: int) -> Cost | None:
    """The cost on `size` ranks; `plan` None is the dense baseline. None for an exchange that has no model."""
    if plan is None:
        return dense(load, size)
    model = MODELS.get(plan.exchange.id)
    return model and model(plan.exchange, load, size)
