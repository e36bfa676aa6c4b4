"""What the cost model is told of a scheme's codecs: bytes of a message and seconds per entry, both measured here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..contract import Context
from ..exchange import Piece
from ..exchange.combine import combine_into
from ..exchange.messages import read
from ..exchange.root import code
from ..scheme import Scheme
from ..seal import Sealed, Selection, seal
from ..sparse import Sparse
from ..wire import pack_message
from . import measure
from .exchange_steps import values
from .measure import Run

MOST = 20_000  # entries that are coded to learn a size; that of more is in proportion
FRAMES = 16  # the same of frames in a message
PEERS, ROUNDS = 8, 5


@dataclass(frozen=True)
class Speeds:
    """Seconds per entry, and γ, seconds per byte that is summed.

    To encode and decode, the same of a mean without loss, to add to a dense mean.
    """

    encode: float
    decode: float
    encode_mean: float
    decode_mean: float
    add: float
    reduce: float


class Coded:
    """Sizes and speeds of a scheme's codecs at supports drawn uniformly."""

    def __init__(self, plan: Scheme) -> None:
        self._plan = plan

    @functools.cache  # noqa: B019 (one object per run)
    def message(self, entries: int, numel: int, without: str = "", frames: int = 1) -> float:
        """Bytes of a message of so many frames of `entries` out of `numel`; `without` the section indices or values."""
        part, some = min(1.0, MOST / max(1, entries)), min(frames, FRAMES)
        less: dict[str, Any] = {without: b""} if without else {}
        fields = replace(self._sample(entries, numel, part).fields, **less)
        return len(pack_message([fields] * some)) / part * frames / some

    @functools.cache  # noqa: B019
    def mean(self, entries: int, numel: int, summed: bool) -> float:
        """Bytes of the message of a mean, coded without loss; `summed`: every entry is a sum over ranks, not one's."""
        part = min(1.0, MOST / max(1, entries))
        whole = self._sample(entries, numel, part).sent
        parts = [whole, whole.like(whole.indices, values(whole.count, seed=2))] if summed else _halves(whole)
        return len(pack_message([code(parts, "all", self._plan)])) / part

    def speeds(self, entries: int, numel: int) -> Speeds:
        """Measured on one thread, with nothing else running in this process."""
        sealed, out = self._sample(entries, numel, 1.0), np.zeros(numel, np.float32)
        own, pieces = [sealed.sent], [Piece("w", out, (numel,), "float32")]
        frames = sealed.fields, code(_halves(sealed.sent), "all", self._plan)
        messages = [memoryview(pack_message([frame])) for frame in frames]
        runs: dict[str, Run] = {
            "encode": partial(self._seal, sealed.sent),
            "decode": partial(read, messages[0], pieces, own, 1),
            "encode_mean": partial(code, _halves(sealed.sent), "all", self._plan),
            "decode_mean": partial(read, messages[1], pieces, own, 1),
            "one": partial(combine_into, out, own, "all"),
            "many": partial(combine_into, out, own * (1 + PEERS), "all"),
            "reduce": partial(np.maximum, out, out, out=out),
        }
        spent = measure.interleaved(runs, ROUNDS, lambda name: None)
        one, many, reduce = (spent.pop(name) for name in ("one", "many", "reduce"))
        coding = {name: seconds / entries for name, seconds in spent.items()}
        return Speeds(**coding, add=max(0.0, many - one) / (PEERS * entries), reduce=reduce / out.nbytes)

    def _sample(self, entries: int, numel: int, part: float) -> Sealed:
        count = round(part * entries)
        size = max(count, round(part * numel))
        where = measure.uniform_indices(size, count, seed=1)
        return self._seal(Sparse.trusted(where, values(count, seed=1), (size,), "float32"))

    def _seal(self, entries: Sparse) -> Sealed:
        offer = Selection(entries.indices, entries.values, entries.at, entries.shape)
        return seal(self._plan, Context("float32", entries.numel, key=1, own_key=2), offer)


def _halves(whole: Sparse) -> list[Sparse]:
    """The same entries as two ranks send them that have none in common."""
    half = whole.count // 2
    return [whole.like(whole.indices[part], whole.work_values[part]) for part in (slice(half), slice(half, None))]
