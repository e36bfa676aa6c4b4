"""`Rates`: the network's latency and rate, as dense steps and probes measure them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..cost.model import NetworkSpeed
from ..cost.step import BucketTiming
from ..cost.volume import all_reduce
from .samples import CHANGED, NOISE
from .trial import LEAST, PROBE, REPEAT

PROBE_SECONDS = 0.02  # that a probe takes at the rate that is known
PROBE_SHARE, PROBE_STEPS = 0.03, (10, 30)  # of the time that probes may take; steps between them
GROWTH = 1.5  # times: a network's latency grows by no more from probe to probe


@dataclass
class Rates:
    """The network as dense steps see it. Probes see another rate, by the factor `bias`.

    The first dense steps are compared with the probe before them, later ones with the first probe after them, unless
    the rate has changed in between. What is known of different schemes can be compared only as long as the network is
    taken for the same: so it stays as it is until two probes running tell of another.
    """

    latency: float
    byte: float
    probed: float  # seconds per byte, of the last probe
    bias: float = 1.0
    matched: bool = False  # whether dense steps and a probe have been compared
    unmatched: bool = False  # whether the next probe is to be
    doubt: int = 0  # whether the last probe found a slower network, 1, or of a faster one, −1

    @classmethod
    def of(cls, network: NetworkSpeed) -> Rates:
        return cls(network.latency, network.byte, network.byte)

    @property
    def network(self) -> NetworkSpeed:
        return NetworkSpeed(self.latency, self.byte)

    def learn_probe(self, probed: NetworkSpeed) -> bool:
        """Takes a probe's result. True if another should follow soon: the network may be, or is, another one."""
        self.probed = max(probed.byte, LEAST)
        if self.unmatched:
            self._match()
            self.unmatched = False
        byte = self.probed * self.bias
        ratio = byte / max(self.byte, LEAST)
        differs = int(ratio >= NOISE) - int(ratio <= 1 / NOISE)
        certain = differs != 0 and differs == self.doubt
        if certain:
            # A rank that is late looks like latency, so that may grow by little.
            self.latency = min(probed.latency, GROWTH * self.latency) if self.latency else probed.latency
            self.byte = byte
        self.doubt = 0 if certain else differs
        return differs != 0

    def learn_dense(self, busy: float, buckets: Iterable[BucketTiming], size: int) -> None:
        """From the seconds in which the exchanges of a dense step went on."""
        moved = [all_reduce(bucket.nbytes, size) for bucket in buckets]
        waiting = self.latency * sum(volume.rounds for volume in moved)
        self.byte = max(LEAST, max(busy / 10, busy - waiting) / max(1.0, sum(volume.sent for volume in moved)))
        self.doubt = 0
        if not self.matched:
            self._match()

    def _match(self) -> None:
        bias = self.byte / max(self.probed, LEAST)
        if not self.matched or 1 / CHANGED < bias / self.bias < CHANGED:
            self.bias = bias
        self.matched = True

    def saved(self) -> dict[str, Any]:
        return asdict(self)

    def loaded(self, state: dict[str, Any]) -> Rates:
        """As saved; what an earlier version did not save stays."""
        return replace(self, **{name: state[name] for name in asdict(self) if name in state})


def probe_interval(network: NetworkSpeed, size: int, step: float) -> int:
    """Steps until the next probe, where a step takes so many seconds."""
    longer = max(1.0, network.byte * all_reduce(PROBE[0], size).sent / PROBE_SECONDS)  # the least probe, if it is slow
    spent, (low, high) = (1 + REPEAT) * (longer * PROBE_SECONDS + size * network.latency), PROBE_STEPS
    return int(min(longer * high, max(low, spent / max(LEAST, PROBE_SHARE * step))))
