"""What the server has sent in the last rounds, from which clients that missed some are brought up to date.

As much is kept as is worth it: once the rounds together take more bytes than the model, the oldest are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ..kernels import Array
from ..scheme import Scheme
from ..sparse import Sparse, elements, merged
from ..wire import unpack_message
from .coding import Coder, pack_patch, pack_weights
from .envelope import MODEL, PATCH, ROUNDS, Down, pack_model, pack_rounds
from .model import ITEM_SIZES, Model


class History:
    """The frames of the rounds `first` … `first + len − 1`; round r leads from the model r to the model r + 1."""

    def __init__(self, coder: Coder, first: int = 0, rounds: Iterable[bytes] = (), most_rounds: int = 1000) -> None:
        self.coder, self.first, self.rounds = coder, first, deque(rounds)
        self.most_rounds = most_rounds
        self._made: dict[int | None, tuple[int, bytes]] = {}

    def append(self, body: bytes, limit: int) -> None:
        """One more round. An empty body is a round in which nothing changed."""
        self.rounds.append(body)
        self._made = {}
        while self.rounds and (sum(map(len, self.rounds)) > limit or len(self.rounds) > self.most_rounds):
            self.rounds.popleft()
            self.first += 1

    @property
    def size(self) -> int:
        return sum(map(len, self.rounds))

    def message(self, model: Model, base: int | None, counted: int, scheme_up: Scheme) -> bytes:
        """The smallest that leads a client from round `base`, or from nothing, to the model as it is now."""
        now = self.first + len(self.rounds)
        known = base if base is not None and self.first <= base <= now else None
        if known not in self._made:
            self._made[known] = self._smallest(model, known, now, scheme_up)
        kind, body = self._made[known]
        return Down(kind, now, now if known is None else known, counted, model.digest, body).pack()

    def _smallest(self, model: Model, base: int | None, now: int, scheme_up: Scheme) -> tuple[int, bytes]:
        """(kind, body), made once for all clients that stand at the same round."""
        if base is None:
            return MODEL, pack_model((str(scheme_up), str(self.coder.scheme)), model.given, pack_weights(model))
        missed = list(self.rounds)[base - self.first :]
        body = pack_rounds(missed)
        worth = len(missed) > 1 and _least_patch(missed) < len(body)
        patch = self._patch(model, missed) if worth else None
        if patch is not None and len(patch) < len(body):
            return PATCH, patch
        return (ROUNDS, body) if len(body) < model.dense_bytes else self._smallest(model, None, now, scheme_up)

    def _patch(self, model: Model, missed: Sequence[bytes]) -> bytes | None:
        """The weights of all elements that have changed; None where every element may have."""
        changes = [self.coder.open(body, model.tensors) for body in missed if body]
        if not changes or any(part.transform is not None for parts in changes for part in parts):
            return None
        return pack_patch(model, [_changed(parts) for parts in zip(*changes, strict=True)])


def _least_patch(missed: Sequence[bytes]) -> int:
    """Bytes of the weights that the round with the most entries has changed: told by the frames' heads."""
    frames = (unpack_message(body) for body in missed)
    return max((sum(one.count * one.width * ITEM_SIZES[one.dtype] for one in some) for some in frames), default=0)


def _changed(parts: Sequence[Sparse]) -> Array:
    return merged([elements(part.indices, part.width) for part in parts])
