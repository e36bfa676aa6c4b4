"""Seconds of a training step: what is computed, and what an exchange adds to it beyond what it overlaps with backward.

A step computes for `rest` seconds until its first bucket of gradients is ready, and exchanges each bucket as soon as it
is ready and the one before has been exchanged:

    end_i = max(end_{i−1}, ready_i) + exchange_i,    step = rest + end_last + what follows the last exchange

What an exchange computes meanwhile delays the buckets that follow, unless there is a core to spare. A dense exchange is
one all_reduce. A compressed one selects, encodes, exchanges and decodes; after the last of them memories are updated,
means written, and what travels dense is reduced, unless it went behind the messages.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace

from sparsewire.codecs.scheme import Scheme
from sparsewire.errors import SchemeError
from sparsewire.exchange import AllGather, Exchange

from . import volume
from .coded import Speeds, coded
from .model import DISJOINT, MODELS, Cost, Load, NetworkSpeed, predict
from .timing import share

NO_WORK = Speeds(*[0.0] * len(fields(Speeds)))


@dataclass(frozen=True)
class BucketTiming:
    """A bucket: seconds after the first one when it is ready, its elements and its bytes."""

    ready: float
    numel: int
    nbytes: int


@dataclass(frozen=True)
class Compute:
    """A step without its exchange: seconds from the end of one to the next step's first bucket, and the buckets.

    spare: how much of a core the rank has left while it computes, at most 1.
    """

    rest: float
    buckets: Sequence[BucketTiming]
    spare: float = 1.0

    @property
    def seconds(self) -> float:
        return self.rest + max((bucket.ready for bucket in self.buckets), default=0.0)

    @property
    def numels(self) -> tuple[int, ...]:
        return tuple(bucket.numel for bucket in self.buckets)

    @property
    def numel(self) -> int:
        return sum(self.numels)

    def late(self) -> Compute:
        """The same where nothing is exchanged before the last bucket is ready."""
        last = max((bucket.ready for bucket in self.buckets), default=0.0)
        return replace(self, buckets=[replace(bucket, ready=last) for bucket in self.buckets])


@dataclass(frozen=True)
class Codecs:
    """What a scheme costs on this machine: seconds per element until its message is made, and after the exchange; how
    many times longer all of it takes with the other ranks at work; the share of entries that it selects."""

    front: float
    back: float
    sharing: float
    density: float
    speeds: Speeds

    @property
    def numbers(self) -> list[float]:
        return [self.front, self.back, self.sharing, self.density, *astuple(self.speeds)]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Codecs:
        """From `numbers`, such as ranks agree on."""
        front, back, sharing, density, *speeds = (float(number) for number in numbers)
        return cls(front, back, sharing, density, Speeds(*speeds))

    def seconds(self, numel: int) -> float:
        """Of one rank's own work in a step."""
        return self.sharing * (self.front + self.back) * numel


def coding(plan: Scheme) -> Scheme:
    """The scheme as far as its codecs cost: what differs in the exchange alone is tried once."""
    return replace(plan, exchange=AllGather())


def dense_step(compute: Compute, network: NetworkSpeed, size: int, work: float = 0.0) -> float:
    """Seconds of a step of DDP without compression.

    Adding up is in β, as that is measured by an all_reduce. `work`: seconds per element more.
    """
    costs = [Cost(volume.all_reduce(bucket.nbytes, size)) for bucket in compute.buckets]
    return compute.rest + _chain(compute, costs, network, NO_WORK, work)


def sparse_step(plan: Scheme, codecs: Codecs, compute: Compute, network: NetworkSpeed, size: int) -> float:
    """Seconds of a step compressed by a scheme."""
    costs = _costs(plan, codecs.density, compute.numels, size)
    carried = isinstance(plan.exchange, Exchange) and plan.exchange.carries
    small = 0.0 if carried else Cost(volume.all_reduce(0.0, size)).seconds(network, NO_WORK, 0.0)
    chain = _chain(compute, costs, network, codecs.speeds, codecs.front, codecs.sharing)
    return compute.rest + chain + codecs.sharing * codecs.back * compute.numel + small


def dense_bytes(compute: Compute, size: int) -> float:
    """Bytes that a rank sends in a step of DDP without compression."""
    return sum(volume.all_reduce(bucket.nbytes, size).sent for bucket in compute.buckets)


def sparse_bytes(plan: Scheme, codecs: Codecs, compute: Compute, size: int) -> float:
    """The same, compressed by a scheme."""
    return sum(cost.volume.sent for cost in _costs(plan, codecs.density, compute.numels, size))


@functools.lru_cache(maxsize=256)
def _costs(plan: Scheme, density: float, numels: tuple[int, ...], size: int) -> list[Cost]:
    """The exchange of each bucket; they are the same from step to step."""
    sizes = coded(coding(plan))
    costs = [predict(plan, Load(numel, share(density, numel), DISJOINT, sizes), size) for numel in numels]
    if None in costs:
        raise SchemeError(f"exchange={plan.exchange} has no cost model: {', '.join(MODELS)} have one")
    return [cost for cost in costs if cost is not None]


def _chain(
    compute: Compute, costs: Sequence[Cost], network: NetworkSpeed, speeds: Speeds, front: float, sharing: float = 1.0
) -> float:
    """Seconds from the first bucket to the end of the last exchange; `front`: per element, before its message."""
    end = late = 0.0
    for bucket, cost in zip(compute.buckets, costs, strict=True):
        conditions = network, speeds, front * bucket.numel, sharing
        end = max(end, bucket.ready + late) + cost.seconds(*conditions)
        late += (1 - compute.spare) * cost.busy_seconds(*conditions)
    return end
