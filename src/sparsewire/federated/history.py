"""The server's messages of the last rounds, which bring clients that missed some of them up to date.

Once the rounds together take more bytes than the model, the oldest are dropped.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence

from sparsewire.codecs.scheme import Scheme
from sparsewire.core.sparse import Sparse, elements, merged
from sparsewire.frames.wire import unpack_message
from sparsewire.kernels import Array

from .coding import Coder, pack_patch, pack_weights
from .envelope import MODEL, PATCH, ROUNDS, Down, pack_model, pack_rounds
from .model import ITEM_SIZES, Model

Made = tuple[int, bytes]  # a message's kind and body


class History:
    """The frames of the rounds `first` … `first + len − 1`; round r leads from the model r to the model r + 1.

    Messages are made once for all clients that stand at the same round. The whole model's is kept until the round ends;
    of the others the last ones, as many as together are no larger than the model.
    """

    def __init__(self, coder: Coder, first: int = 0, rounds: Iterable[bytes] = (), most_rounds: int = 1000) -> None:
        self.coder, self.first, self.rounds = coder, first, deque(rounds)
        self.most_rounds = most_rounds
        self.size = sum(map(len, self.rounds))
        self._whole: Made | None = None
        self._made: dict[int, Made | None] = {}  # by round; None: nothing is smaller than the whole model
        self._made_size = 0

    def append(self, body: bytes, limit: int) -> None:
        """One more round. An empty body is a round in which nothing changed."""
        self.rounds.append(body)
        self.size += len(body)
        self._whole, self._made, self._made_size = None, {}, 0
        while self.rounds and (self.size > limit or len(self.rounds) > self.most_rounds):
            self.size -= len(self.rounds.popleft())
            self.first += 1

    def message(self, model: Model, base: int | None, counted: int, scheme_up: Scheme) -> bytes:
        """The smallest that leads a client from round `base`, or from nothing, to the model as it is now."""
        now = self.first + len(self.rounds)
        start = base if base is not None and self.first <= base <= now else None
        made = None if start is None else self._since(model, start)
        kind, body = made or self._all(model, scheme_up)
        return Down(kind, now, now if start is None else start, counted, model.digest, body).pack()

    def _all(self, model: Model, scheme_up: Scheme) -> Made:
        if self._whole is None:
            schemes = str(scheme_up), str(self.coder.scheme)
            self._whole = MODEL, pack_model(schemes, model.given, pack_weights(model))
        return self._whole

    def _since(self, model: Model, base: int) -> Made | None:
        if base not in self._made:
            made = self._made[base] = self._smallest(model, base)
            self._made_size += len(made[1]) if made else 0
            self._drop_oldest(model.dense_bytes)
        else:
            made = self._made[base]
        return made

    def _drop_oldest(self, limit: int) -> None:
        while self._made_size > limit:
            base, made = next((base, made) for base, made in self._made.items() if made)
            self._made_size -= len(made[1])
            del self._made[base]

    def _smallest(self, model: Model, base: int) -> Made | None:
        """The rounds since, or the weights that they have changed; None where both take more than the model."""
        missed = list(itertools.islice(self.rounds, base - self.first, None))
        body = pack_rounds(missed)
        worth = len(missed) > 1 and _least_patch(missed) < len(body)
        patch = self._patch(model, missed) if worth else None
        if patch is not None and len(patch) < len(body):
            return PATCH, patch
        return (ROUNDS, body) if len(body) < model.dense_bytes else None

    def _patch(self, model: Model, missed: Sequence[bytes]) -> bytes | None:
        """The weights of all elements that have changed; None where every element may have."""
        changes = [self.coder.open(body, model.tensors) for body in missed if body]
        if not changes or any(part.transform is not None for parts in changes for part in parts):
            return None
        return pack_patch(model, [_changed(parts) for parts in zip(*changes, strict=True)])


def _least_patch(missed: Sequence[bytes]) -> int:
    """Bytes of the weights that the round with the most entries has changed, read from the frames' heads."""
    rounds = (unpack_message(body) for body in missed)
    sizes = (sum(part.count * part.width * ITEM_SIZES[part.dtype] for part in frames) for frames in rounds)
    return max(sizes, default=0)


def _changed(parts: Sequence[Sparse]) -> Array:
    return merged([elements(part.indices, part.width) for part in parts])
