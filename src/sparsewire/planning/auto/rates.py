"""`Rates`: what dense steps and probes tell of the link's rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..cost.model import Link
from ..cost.step import Part
from ..cost.volume import all_reduce
from .trial import LEAST

BIAS, GROWTH = (0.1, 20.0), 1.5
STEADY = 1.3  # times: rates that differ less are one
ALIKE = 5.0  # times: a bias that differs more from the one before is of a rate that has changed meanwhile


@dataclass
class Rates:
    """The link as dense steps see it. Probes see another rate, by the factor `bias`.

    The first dense steps are compared with the probe before them, later ones with the first probe after them, unless
    the rate has changed in between. What is known of different schemes can be compared only as long as the link is
    taken for the same: so it stays as it is until two probes running tell of another.
    """

    latency: float
    byte: float
    probed: float  # seconds per byte, of the last probe
    bias: float = 1.0
    matched: bool = False  # whether dense steps and a probe have been compared
    unmatched: bool = False  # whether the next probe is to be
    doubt: int = 0  # whether the last probe told of a slower link, 1, or of a faster one, −1

    @classmethod
    def of(cls, link: Link) -> Rates:
        return cls(link.latency, link.byte, link.byte)

    @property
    def link(self) -> Link:
        return Link(self.latency, self.byte)

    def learn_probe(self, found: Link) -> bool:
        """Whether another probe should follow soon: the link may be, or is, another one."""
        self.probed = max(found.byte, LEAST)
        if self.unmatched:
            self._match()
            self.unmatched = False
        byte = self.probed * self.bias
        ratio = byte / max(self.byte, LEAST)
        differs = int(ratio >= STEADY) - int(ratio <= 1 / STEADY)
        certain = differs != 0 and differs == self.doubt
        if certain:
            # A rank that is late looks like latency, so that may grow by little.
            self.latency = min(found.latency, GROWTH * self.latency) if self.latency else found.latency
            self.byte = byte
        self.doubt = 0 if certain else differs
        return differs != 0

    def learn_dense(self, busy: float, parts: Iterable[Part], size: int) -> None:
        """From the seconds in which the exchanges of a dense step went on."""
        moved = [all_reduce(part.nbytes, size) for part in parts]
        waiting = self.latency * sum(one.rounds for one in moved)
        self.byte = max(LEAST, max(busy / 10, busy - waiting) / max(1.0, sum(one.sent for one in moved)))
        self.doubt = 0
        if not self.matched:
            self._match()

    def _match(self) -> None:
        found = self.byte / max(self.probed, LEAST)
        if not self.matched or 1 / ALIKE < found / self.bias < ALIKE:
            self.bias = min(BIAS[1], max(BIAS[0], found))
        self.matched = True

    def saved(self) -> dict[str, Any]:
        return asdict(self)

    def loaded(self, state: dict[str, Any]) -> Rates:
        """As saved; what an earlier version did not save stays."""
        return replace(self, **{name: state[name] for name in asdict(self) if name in state})
