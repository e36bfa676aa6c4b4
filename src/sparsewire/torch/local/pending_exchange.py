"""With `overlap`, an exchange is pending while the next local steps are made."""

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

from .background_call import BackgroundCall


@dataclass
class PendingExchange:
    """A meeting on another thread: the weights that this rank brought to it, the call that holds it, and the number of
    local steps until its outcome is written to the model."""

    visit: Visit
    call: BackgroundCall[bool | None]
    steps_left: int

    def save(self, mix: float, rounds: Rounds) -> dict[str, Any]:
        """The exchange is done, but its outcome is not in the model yet: `then` are the weights that this rank brought
        to it. After a meeting with non-finite weights they are not needed, and need not be finite."""
        finite = bool(self.call.result())
        then = {name: self.visit.local[name] if finite else rounds.common[name] for name in self.visit.names}
        return {
            "left": self.steps_left,
            "mix": mix,
            "finite": finite,
            "then": {name: array.copy() for name, array in then.items()},
            "sent": {name: part.indices.copy() for name, part in rounds.sent.items()},
        }

    @classmethod
    def of(cls, saved: SavedExchange, rounds: Rounds) -> PendingExchange:
        """The exchange that was pending when the state was saved."""
        rounds.sent.clear()
        rounds.sent.update(saved.sent)
        visit = Visit(DUE, tuple(saved.then), saved.then, 0, rounds.total, True, saved.finite)
        return cls(visit, BackgroundCall(lambda: saved.finite), saved.steps_left)


@dataclass(frozen=True)
class SavedExchange:
    """A `PendingExchange` in a saved state, checked."""

    steps_left: int
    finite: bool
    then: dict[str, Array]
    sent: dict[str, Sparse]

    @classmethod
    def read(cls, saved: Mapping[str, Any], like: Weights) -> SavedExchange:
        """`like` are the common weights."""
        then = weights_like(like, saved["then"], every=False)
        sent = {name: _sent(indices, like[name]) for name, indices in saved["sent"].items()}
        return cls(whole(saved["left"], "steps to an exchange"), bool(saved["finite"]), then, sent)


def _sent(indices: Array, like: Array) -> Sparse:
    return Sparse(np.array(indices), np.zeros(indices.size, like.dtype), (like.size,))
