"""An exchange on its way, while the next local steps are made: with `overlap`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.core.sparse import Sparse
from sparsewire.kernels import Array
from sparsewire.training.local.round_states import weights_like
from sparsewire.training.local.rounds import DUE, Rounds, Visit, Weights
from sparsewire.training.residuals.saved import whole

from .errand import Errand


@dataclass
class Flight:
    """With what this rank went to it, what will come of it, and after how many more steps that is taken in."""

    visit: Visit
    errand: Errand[bool | None]
    left: int

    def save(self, mix: float, rounds: Rounds) -> dict[str, Any]:
        """The exchange is done, but not yet taken in: `then` are the weights with which this rank went to it. Of one
        that a rank has spoiled they are not needed, and need not be finite."""
        finite = bool(self.errand.result())
        then = {name: self.visit.local[name] if finite else rounds.common[name] for name in self.visit.names}
        return {
            "left": self.left,
            "mix": mix,
            "finite": finite,
            "then": {name: array.copy() for name, array in then.items()},
            "sent": {name: part.indices.copy() for name, part in rounds.sent.items()},
        }

    @classmethod
    def of(cls, pending: Pending, rounds: Rounds) -> Flight:
        """An exchange that was on its way when the state was saved."""
        rounds.sent.clear()
        rounds.sent.update(pending.sent)
        visit = Visit(DUE, tuple(pending.then), pending.then, 0, rounds.total, True, pending.finite)
        return cls(visit, Errand(lambda: pending.finite), pending.left)


@dataclass(frozen=True)
class Pending:
    """What `Flight.save` gave, checked."""

    left: int
    finite: bool
    then: dict[str, Array]
    sent: dict[str, Sparse]

    @classmethod
    def read(cls, saved: Mapping[str, Any], like: Weights) -> Pending:
        """`like` are the common weights."""
        then = weights_like(like, saved["then"], every=False)
        sent = {name: _sent(indices, like[name]) for name, indices in saved["sent"].items()}
        return cls(whole(saved["left"], "steps to an exchange"), bool(saved["finite"]), then, sent)


def _sent(indices: Array, like: Array) -> Sparse:
    return Sparse(np.array(indices), np.zeros(indices.size, like.dtype), (like.size,))
