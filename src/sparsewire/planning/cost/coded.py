"""What a scheme's codecs cost: bytes of a message and seconds per entry, both measured here."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import Scheme
from sparsewire.core.sparse import Sparse, elements
from sparsewire.exchange import Piece
from sparsewire.exchange.combine import combine, combine_into
from sparsewire.exchange.messages import read
from sparsewire.exchange.root import code
from sparsewire.exchange.sketch.table import Table
from sparsewire.frames.seal import Sealed, Selection, seal
from sparsewire.frames.wire import Frame, pack_message
from sparsewire.kernels import Array

from .timing import BURST, Run, interleaved, uniform_indices, values

MOST = 20_000  # entries that are coded to learn a size; that of more is in proportion
FRAMES = 16  # the same of frames in a message
PEERS, ROUNDS = 8, 5


@dataclass(frozen=True)
class Speeds:
    """Seconds per entry; where that is in the name, per frame, however few entries it has; γ, per byte that is summed.

    `mean` is one coded without loss. Entries are inserted into a sketch and queried, merged into a sparse sum, added to
    a dense one.
    """

    encode: float
    decode: float
    encode_frame: float
    decode_frame: float
    encode_mean: float
    decode_mean: float
    insert: float
    query: float
    merge: float
    add: float
    reduce: float


class Coded:
    """Sizes and speeds of a scheme's codecs at supports drawn uniformly."""

    def __init__(self, plan: Scheme) -> None:
        self._plan = plan

    @functools.cache  # noqa: B019 (one object per run)
    def message(self, entries: int, numel: int, without: str = "", frames: int = 1) -> float:
        """Bytes of a message of so many frames of `entries` out of `numel`; `without` the section indices or values."""
        part, packed = min(1.0, MOST / max(1, entries)), min(frames, FRAMES)
        less: dict[str, Any] = {without: b""} if without else {}
        fields = replace(self._sample(entries, numel, part).fields, **less)
        return len(pack_message([fields] * packed)) / part * frames / packed

    def sections(self, entries: int, numel: int) -> tuple[float, float]:
        """Bytes of the coded indices and of the coded values."""
        whole = self.message(entries, numel)
        indices, values = (whole - self.message(entries, numel, name) for name in ("indices", "values"))
        return indices, values

    @functools.cache  # noqa: B019
    def mean(self, entries: int, numel: int, summed: bool) -> float:
        """Bytes of the message of a mean, coded without loss; `summed`: every entry is a sum over ranks, not one's."""
        part = min(1.0, MOST / max(1, entries))
        whole = self._sample(entries, numel, part).sent
        others = values(whole.values.size, seed=2)
        parts = [whole, whole.like(whole.indices, others)] if summed else _halves(whole)
        return len(pack_message([code(parts, "all", self._plan)])) / part

    def speeds(self, entries: int, numel: int, rounds: int = ROUNDS, burst: float = BURST) -> Speeds:
        """Measured on one thread, with nothing else running in this process."""
        sample = self._sample(entries, numel, 1.0)
        out = np.zeros(sample.sent.size * sample.sent.width, np.float32)
        spent = interleaved(self._runs(sample, numel, out), rounds, lambda name: None, burst=burst)
        frames = {name: spent[name] for name in ("encode_frame", "decode_frame")}
        per_entry = {name: max(0.0, spent[name] - spent[f"{name}_frame"]) / entries for name in ("encode", "decode")}
        per_entry |= {name: spent[name] / entries for name in ("encode_mean", "decode_mean", "insert", "query")}
        per_entry["merge"] = spent["merge"] / (PEERS * entries)
        per_entry["add"] = max(0.0, spent["many"] - spent["one"]) / (PEERS * entries)
        return Speeds(**frames, **per_entry, reduce=spent["reduce"] / out.nbytes)

    def _runs(self, sample: Sealed, numel: int, out: Array) -> dict[str, Run]:
        few, own, halves = self._sample(1, numel, 1.0), [sample.sent], _halves(sample.sent)
        ids = elements(sample.sent.indices, sample.sent.width)
        mean, table = code(halves, "all", self._plan), Table(ids, 1, max(1, ids.size // 4), (1,))
        buckets = np.zeros(table.numbers, np.float32)
        return {
            "encode": partial(self._seal, sample.sent),
            "decode": _reading(sample.fields, own),
            "encode_frame": partial(self._seal, few.sent),
            "decode_frame": _reading(few.fields, own),
            "encode_mean": partial(code, halves, "all", self._plan),
            "decode_mean": _reading(mean, own),
            "insert": partial(table.insert, buckets, sample.sent.work_values),
            "query": partial(table.project, buckets),
            "merge": partial(combine, own * PEERS, "all"),
            "one": partial(combine_into, out, own, "all"),
            "many": partial(combine_into, out, own * (1 + PEERS), "all"),
            "reduce": partial(np.maximum, out, out, out=out),
        }

    def _sample(self, entries: int, numel: int, part: float) -> Sealed:
        """Entries as the plan's transform has them."""
        count = round(part * entries)
        shape = (max(count, round(part * numel)),)
        transform = self._plan.transform.fitted(shape)
        domain, width = None if transform.is_identity else transform, transform.width
        where = uniform_indices(max(count, transform.size(shape[0])), count, seed=1)
        return self._seal(Sparse.trusted(where, values(count * width, seed=1), shape, "float32", width, domain))

    def _seal(self, entries: Sparse) -> Sealed:
        parts = entries.indices, entries.values, entries.at, entries.shape, entries.width, entries.transform
        return seal(self._plan, Context("float32", entries.size, key=1, own_key=2), Selection(*parts))


@functools.lru_cache(maxsize=64)
def coded(plan: Scheme) -> Coded:
    """The sizes and speeds of a scheme's codecs; what was measured once is not measured again."""
    return Coded(plan)


def _halves(whole: Sparse) -> list[Sparse]:
    """The same entries as two ranks send them that have none in common."""
    half, rows = whole.count // 2, whole.work_values.reshape(-1, whole.width)
    parts = (slice(half), slice(half, None))
    return [whole.like(whole.indices[part], rows[part].reshape(-1)) for part in parts]


def _reading(frame: Frame, own: list[Sparse]) -> Run:
    """What a receiver does with a message of this one frame."""
    piece = Piece("w", own[0], own[0].shape, own[0].dtype)
    return partial(read, memoryview(pack_message([frame])), [piece], own, 1)
