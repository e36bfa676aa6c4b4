"""An exchange on its way, while the next local steps are made: with `overlap`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rounds import DUE, Rounds, Visit
from ..sparse import Sparse
from .errand import Errand


@dataclass
class Flight:
    """With what this rank went to it, what will come of it, and after how many more steps that is taken in."""

    visit: Visit
    errand: Errand[bool | None]
    left: int

    def save(self, mix: float, rounds: Rounds) -> dict[str, Any]:
        """The exchange is done, but not yet taken in: `then` are the weights with which this rank went to it."""
        return {
            "left": self.left,
            "mix": mix,
            "finite": bool(self.errand.result()),
            "then": {name: self.visit.local[name].copy() for name in self.visit.names},
            "sent": {name: part.indices.copy() for name, part in rounds.sent.items()},
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any], rounds: Rounds) -> Flight:
        then = {name: np.array(array) for name, array in saved["then"].items()}
        finite = bool(saved["finite"])
        rounds.sent.clear()
        for name, indices in saved["sent"].items():
            size = rounds.common[name].size
            rounds.sent[name] = Sparse(indices, np.zeros(indices.size, rounds.common[name].dtype), (size,))
        visit = Visit(DUE, tuple(then), then, 0, rounds.total, True, finite)
        return cls(visit, Errand(lambda: finite), int(saved["left"]))
