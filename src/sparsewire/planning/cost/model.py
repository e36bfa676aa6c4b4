"""The cost of an exchange by the α–β model: bytes, rounds and entries from the sizes alone, and seconds from them.

P ranks have full-duplex links. A round costs the latency α whatever it carries, a byte β seconds, a byte that is added
up γ. On its busiest rank an exchange then takes

    T = local + Σ seconds per entry or frame × their number + γ · reduced + α · rounds + β · max(sent, received)

where `local` is what a step takes on one rank alone (selection, encoding, the dense mean), measured, and entries and
frames are those beyond it. Where ranks share cores, computing takes so much longer, unless the others wait for one
(`alone`).

k is the number of entries that a rank selects, d the number of elements, m(n, d) the bytes of a coded message of n
entries out of d, and u the entries of the union of the ranks' supports: k where they are identical, min(d, Pk) where
they are disjoint. What a collective moves is in volume.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from sparsewire.codecs.scheme import Scheme
from sparsewire.exchange.shared_support.levels import Carrier

from . import volume
from .coded import Coded, Speeds
from .volume import Volume

NOTICE, FINGERPRINT, NOTE = (
    5,
    9,
    60,
)  # bytes: in front of `reduce_scatter`'s messages; that come first in `shared`, `sketch`
FLOATS = {"float32": 4, "bfloat16": 2}  # bytes per number that is summed
IDENTICAL, DISJOINT = "identical", "disjoint"  # how the ranks' supports lie
DECODING = frozenset({"decode", "decode_frame", "query"})


@dataclass(frozen=True)
class NetworkSpeed:
    """How fast ranks exchange: α, seconds per round; β, seconds per byte; the bytes that a limited link lets pass at
    once (`burst`); and the part of β in which a processor is busy."""

    latency: float
    byte: float
    burst: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True)
class Cost:
    """The busiest rank's volume, and its work by speed: entries and frames beyond those of its own selection."""

    volume: Volume
    work: Mapping[str, float] = field(default_factory=dict)
    alone: bool = False

    def decode_seconds(self, speeds: Speeds, sharing: float = 1.0) -> float:
        """What every rank decodes: the others' messages, or the mean that one rank made of them."""
        return sharing * self._work(speeds, {"decode_mean"} if self.alone else DECODING)

    def seconds(
        self, network: NetworkSpeed, speeds: Speeds, local: float, sharing: float = 1.0, ring: bool = True
    ) -> float:
        """T; `sharing` is the number of ranks per core, at least 1."""
        rounds = self.volume.rounds if ring else self.volume.fewest
        return self._computing(speeds, local, sharing) + network.latency * rounds + network.byte * self._moved(network)

    def busy_seconds(self, network: NetworkSpeed, speeds: Speeds, local: float, sharing: float = 1.0) -> float:
        """The part of T in which a processor is busy."""
        return self._computing(speeds, local, sharing) + network.busy * network.byte * self._moved(network)

    def _computing(self, speeds: Speeds, local: float, sharing: float) -> float:
        work = local + self._work(speeds, self.work.keys()) + speeds.reduce * self.volume.reduced
        return (1.0 if self.alone else sharing) * work

    def _moved(self, network: NetworkSpeed) -> float:
        return max(0.0, max(self.volume.sent, self.volume.received) - network.burst)

    def _work(self, speeds: Speeds, names: Set[str]) -> float:
        return sum(getattr(speeds, name) * count for name, count in self.work.items() if name in names)


@dataclass(frozen=True)
class Load:
    """d, k, how the ranks' supports lie, and what their codecs make of them."""

    numel: int
    entries: int
    supports: str
    coded: Coded

    def union(self, size: int) -> int:
        return self.entries if self.supports == IDENTICAL else min(self.numel, size * self.entries)

    def message(self, entries: float, numel: float, without: str = "", frames: int = 1) -> float:
        return self.coded.message(math.ceil(entries), math.ceil(numel), without, frames)

    def sections(self, size: int) -> tuple[float, float]:
        """The coded indices and the coded values of all other ranks."""
        indices, values = self.coded.sections(self.entries, self.numel)
        return (size - 1) * indices, (size - 1) * values

    def gathered(self, size: int, entries: float, numel: float, without: str = "", more: int = 0) -> Volume:
        """An all_gather of messages of so many entries, and a few bytes more, from every rank."""
        return volume.all_gather([self.message(entries, numel, without) + more] * size)


def dense(load: Load, size: int) -> Cost:
    """One all_reduce of the d float32 themselves."""
    return Cost(volume.all_reduce(4.0 * load.numel, size))


def allgather(exchange: Any, load: Load, size: int) -> Cost:
    """One all_gather of messages m(k, d). Every rank decodes (P−1)k entries and adds them up: all grows with P."""
    return Cost(load.gathered(size, load.entries, load.numel), _decoding(size, load.entries))


def _decoding(size: int, entries: float) -> dict[str, float]:
    """The messages of all other ranks, decoded and added to a dense mean."""
    return {"decode_frame": size - 1, "decode": (size - 1) * entries, "add": (size - 1) * entries}


def root(exchange: Any, load: Load, size: int) -> Cost:
    """P−1 messages m(k, d) to the root, and a broadcast of the mean of u entries, which it codes without loss, alone.

    The busiest rank is the root: (P−1)·m in, ⌈log2 P⌉ × the mean out.
    """
    union, others = load.union(size), (size - 1) * load.entries
    inward = volume.message(received=(size - 1) * load.message(load.entries, load.numel))
    mean = load.coded.mean(union, load.numel, load.supports == IDENTICAL)
    work = {"decode_frame": size - 1, "decode": others, "merge": others, "decode_mean": union}
    work["encode_mean"] = union - load.entries
    return Cost(inward + volume.broadcast(mean, size), work, alone=True)


def reduce_scatter(exchange: Any, load: Load, size: int) -> Cost:
    """(P−1) slices m(k/P, d/P) to their owners, who keep k/P sums, and an all_gather of these: 2k(P−1)/P entries.

    `direct` is an all_to_all. `log` takes ⌈log2 P⌉ rounds, in which cuts leave k/P entries of every slice as well: the
    slices on their way from rank to rank are P−1 again. Who gets a slice merges it three times: into a sum, into the
    cut, and into what counts as its own part; where supports are disjoint, with as many of its own.
    """
    entries, numel = load.entries / size, load.numel / size
    if exchange.route == "direct":
        parts = [load.message(entries, numel) + NOTICE] * size
        scattered = volume.all_to_all(parts, parts)
    else:
        scattered = sum((volume.message(moved, moved) for moved in _hops(load, size)), Volume())
    coded = (size - 1) * entries
    owned = load.gathered(size, entries, numel, more=NOTICE)
    work = {"encode": entries, "encode_frame": size - 1, "decode": 2 * coded, "decode_frame": 2 * (size - 1)}
    return Cost(scattered + owned, {**work, "merge": (3 if load.supports == IDENTICAL else 6) * coded})


def _hops(load: Load, size: int) -> Iterator[float]:
    """The bytes that a rank passes on in each round of `log`: the slices whose owner is a hop or more away."""
    held = size
    for power in reversed(range(volume.doublings(size))):
        yield load.message(load.entries / size, load.numel / size, frames=held - 2**power) + NOTICE
        held = 2**power


def shared(exchange: Any, load: Load, size: int) -> Cost:
    """An all_reduce of the numbers at one support of s entries, after the ranks have agreed on it.

    `pool`: an all_gather of the indices of k/P entries each; s is their union, of identical supports k(1 − (1−1/P)^P),
    as each rank draws its own. `leader`: a broadcast of k indices; s = k. `mask`: digests alone, and s = k where they
    agree; where they do not, `allgather`.
    """
    fingerprints = volume.all_gather([FINGERPRINT] * size)
    if exchange.support == "mask":
        if load.supports == IDENTICAL:
            return Cost(fingerprints + _summed(load.entries, exchange.values, size))
        cost = allgather(exchange, load, size)
        return replace(cost, volume=fingerprints + cost.volume)
    if exchange.support == "leader":
        index = volume.broadcast(load.message(load.entries, load.numel, without="values"), size)
        work = {"decode_frame": 1.0, "decode": load.entries}
        return Cost(fingerprints + index + _summed(load.entries, exchange.values, size), work)
    share = math.ceil(load.entries / size)
    pool = load.entries * (1 - (1 - share / load.entries) ** size) if load.supports == IDENTICAL else size * share
    proposed = load.gathered(size, share, load.numel, without="values")
    work = {"decode_frame": size, "decode": size * share}
    return Cost(proposed + _summed(min(pool, load.numel), exchange.values, size), work)


def _summed(entries: float, values: str, size: int) -> Volume:
    """The all_reduce of so many numbers; for integers another one, of their scale."""
    if values in FLOATS:
        return volume.all_reduce(FLOATS[values] * entries, size)
    carrier = Carrier(max(1, 127 // size) if values == "int8" else 1, size)
    return volume.all_reduce(entries * (1 if carrier.one_per_byte else 8 / carrier.digits), size) + volume.all_reduce(
        8, size
    )


def sketch(exchange: Any, load: Load, size: int) -> Cost:
    """Notes from all to all, what it takes to find the union, and an all_reduce of a table as large as that asks for.

    In place of the table go coded values, or whole messages after bits, where these are fewer bytes; and whole messages
    in place of bits and table where both together could not be fewer.
    """
    notes, (union_volume, bits) = volume.all_gather([NOTE] * size), _union_volume(load, size)
    union, sections = load.union(size), load.sections(size)
    table, least = (volume.all_reduce(4.0 * exchange.rows * exchange.columns(n), size) for n in (union, load.entries))
    gathered = load.gathered(size, load.entries, load.numel, without="" if bits else "indices")
    coded = Cost(notes + union_volume + gathered, _decoding(size, load.entries))
    if bits and sum(sections) < union_volume.received + least.received:
        return replace(coded, volume=notes + gathered)
    if (sum(sections) if bits else sections[1]) < table.received:
        return coded
    return Cost(notes + union_volume + table, {"insert": union, "query": 2 * union})


def _union_volume(load: Load, size: int) -> tuple[Volume, bool]:
    """The volume of finding the union, and whether it is found by bits.

    It is zero where notes say that all supports are the same; else d bits in an all_reduce, or all coded indices.
    """
    if load.supports == IDENTICAL:
        return Volume(), False
    bits = volume.all_reduce(math.ceil(load.numel / 8), size)
    if bits.received < load.sections(size)[0]:
        return bits, True
    return load.gathered(size, load.entries, load.numel, without="values"), False


Model = Callable[[Any, Load, int], Cost]
MODELS: dict[str, Model] = {
    "allgather": allgather,
    "root": root,
    "reduce_scatter": reduce_scatter,
    "shared": shared,
    "sketch": sketch,
}


def predict(plan: Scheme | None, load: Load, size: int) -> Cost | None:
    """The cost on `size` ranks; `plan` None is the dense baseline. None for an exchange that has no model."""
    if plan is None:
        return dense(load, size)
    model = MODELS.get(plan.exchange.id)
    return model and model(plan.exchange, load, size)
