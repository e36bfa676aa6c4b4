"""`sketch`: S2 Reducer (Ge, Fu, Lai, Deng, Li; arXiv 2110.02140). What travels is summed by an ordinary all_reduce, so
that a rank's bytes do not grow with the number of ranks.

1. Every rank selects; the ranks find the union of their supports (`union`).
2. Each sketches all that it has at the union's entries, not only what it selected there, into a table (`sketch_table`).
   Tables are fresh every step, and so are the hashes, which come from the key that all ranks share: with the same
   hashes every step what a bucket's entries differ by would never be sent. Each tensor has a part of the table of its
   own, as large as its share of the union.
3. One all_reduce sums the tables. Every rank decodes the sum at the union's entries: the mean.
4. What a rank sent is what its own table decodes to; decoding is linear, so that adds up to the mean. With
   `decode=median`, which is not, what the median differs by from the linear decoder is counted in equal parts as sent
   by all. A rank's memory keeps the rest, as a negative number where its table says too much.

Where the coded values of all ranks, gathered, are fewer bytes than the table, they are gathered instead: exactly what
`allgather` would move. Differs from the paper: the projecting decoder, hashes that change, coded supports, and that
tables do not cross tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsewire import kernels
from sparsewire.core.rng import derive_key
from sparsewire.core.sparse import Sparse, elements, work_dtype
from sparsewire.errors import FrameError
from sparsewire.frames.codec import decode_parsed
from sparsewire.frames.piece import Piece, Selected
from sparsewire.frames.wire import Frame, pack_message
from sparsewire.kernels import Array

from ..allgather import announcing_failure, gather_sealed, outcomes
from ..base import Exchange, ExchangeContext, Outcome, SparseMean
from ..messages import blaming, gather, own_dtype, parse
from .table import Table
from .union import Call, Note, Union, choose_method, find, gather_notes, gathered, reduced, size_of_bits

VOLUME = 0.25
MOST_ROWS, MOST_COLUMNS = 32, 2**32


@dataclass(frozen=True)
class Sketch(Exchange):
    """A table of `rows` rows that an all_reduce sums.

    Its size is one of: `volume`, numbers in the table per number in the union (0.25 if nothing is given); `cols`,
    columns per row and tensor; `error`, the relative error √(entries/columns) that a row may have without a memory.
    `by=row` hashes entries of several numbers as one, `by=element` each of their numbers.
    """

    id = "sketch"
    wire_id = 2

    rows: int = 1
    volume: float | None = None
    cols: int | None = None
    error: float | None = None
    decode: str = "project"
    by: str = "element"

    def check(self) -> None:
        sizes = [size for size in (self.volume, self.cols, self.error) if size is not None]
        self.expect(1 <= self.rows <= MOST_ROWS, f"rows lies in 1 … {MOST_ROWS}")
        self.expect(len(sizes) <= 1, "give one of volume, cols and error")
        self.expect(all(size > 0 for size in sizes), "volume, cols and error are larger than 0")
        self.expect(self.cols is None or self.cols <= MOST_COLUMNS, "cols is at most 2**32")
        self.expect(self.decode in ("project", "median"), "decode is project or median")
        self.expect(self.by in ("element", "row"), "by is element or row")

    def columns(self, entries: int) -> int:
        """Columns of the table for so many entries.

        >>> Sketch(volume=0.5).columns(1000), Sketch(error=0.5).columns(1000), Sketch(rows=3, cols=70).columns(1000)
        (500, 4000, 70)
        """
        if self.cols is not None:
            wanted: float = self.cols
        elif self.error is not None:
            wanted = entries / self.error**2
        else:
            wanted = (self.volume or VOLUME) * entries / self.rows
        return max(1, round(min(wanted, MOST_COLUMNS))) if entries else 0

    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        """Moves the offers' supports and tables; no buffer is written."""
        with announcing_failure(context.comm, context.channel([offer.piece for offer in offers])):
            call = Call.of(offers, context)
            note = call.note(str(self))
        with context.clock("exchange"):
            notes = gather_notes(note, context.comm, call.channel)
        method = choose_method(notes, size_of_bits(call))
        if method == "bits" and self._frames_are_smaller(call, notes):
            return _gather_frames(call)
        context.clock.count(f"sketch_{method}")
        return self._meet(find(method, call), call, notes)

    def _meet(self, union: Union, call: Call, notes: Sequence[Note]) -> list[Outcome]:
        """The rest, once the union is known: a table, or what is not known yet of the frames, if that is smaller."""
        tables = [self._table(*args) for args in zip(union.entries, call.own, call.keys, strict=True)]
        size = sum(table.numbers for table in tables) * _dtype(call.pieces).itemsize
        if union.frames is None and _frames(notes) < reduced(size, notes):
            return _gather_frames(call)
        if union.frames is not None and gathered([note.values for note in notes]) < reduced(size, notes):
            return _gather_values(call, union.frames)
        call.context.clock.count("sketch")
        return self._sum(call, union, tables)

    def _frames_are_smaller(self, call: Call, notes: Sequence[Note]) -> bool:
        """Whether gathered frames are fewer bytes than bits and a table, even if all supports lay in the largest."""
        least = self.rows * self.columns(max(note.numbers for note in notes)) * _dtype(call.pieces).itemsize
        return _frames(notes) < reduced(size_of_bits(call) + least, notes)

    def _table(self, entries: Array, like: Sparse, key: int) -> Table:
        width = like.width if self.by == "row" else 1
        ids = entries if self.by == "row" else elements(entries, like.width)
        keys = tuple(derive_key(key, "sketch", row) for row in range(self.rows))
        return Table(ids, width, self.columns(ids.size), keys)

    def _sum(self, call: Call, union: Union, tables: Sequence[Table]) -> list[Outcome]:
        clock, comm = call.context.clock, call.context.comm
        with clock("encode"):
            own = _sketched(call, union, tables)
        with clock("exchange"), np.errstate(all="ignore"):
            total = comm.all_reduce(own)
        with clock("decode"), np.errstate(all="ignore"):
            parts = zip(tables, _split(own, tables), _split(total, tables), union.entries, call.own, strict=True)
            return [self._outcome(*part, comm.size) for part in parts]

    def _outcome(
        self, table: Table, own: Array, total: Array, entries: Array, like: Sparse, ranks: int
    ) -> Outcome:  # fmt: skip
        sent, mean = table.project(own), table.project(total)
        share = total.dtype.type(1 / ranks)
        if self.decode == "median":
            linear, mean = mean, table.median(total)
            sent += (mean - linear) * share
        finite = bool(kernels.all_finite(total))
        return SparseMean(_numbers(entries, sent, like), _numbers(entries, mean * share, like), finite, like.dtype)


def _sketched(call: Call, union: Union, tables: Sequence[Table]) -> Array:
    """This rank's tables, side by side."""
    whole = np.zeros(sum(table.numbers for table in tables), _dtype(call.pieces))
    for table, part, entries, offer in zip(tables, _split(whole, tables), union.entries, call.offers, strict=True):
        table.insert(part, offer.selection.at(entries).astype(whole.dtype, copy=False))
    return whole


def _split(whole: Array, tables: Sequence[Table]) -> list[Array]:
    """Each tensor's part of tables side by side."""
    ends = itertools.accumulate(table.numbers for table in tables)
    return [whole[end - table.numbers : end] for end, table in zip(ends, tables, strict=True)]


def _numbers(entries: Array, numbers: Array, like: Sparse) -> Sparse:
    """Entries of such a tensor in its work dtype: what ranks count as sent adds up to the mean before any rounding."""
    kind = work_dtype(like.dtype)
    return Sparse.trusted(entries, numbers.astype(kind), like.shape, kind.name, like.width, like.transform)


def _dtype(pieces: Sequence[Piece]) -> np.dtype[np.floating]:
    """The number type of the table: the widest that a piece is worked with in."""
    return np.result_type(np.float32, *(work_dtype(piece.dtype) for piece in pieces))


def _frames(notes: Sequence[Note]) -> float:
    return gathered([note.supports + note.values for note in notes])


def _gather_frames(call: Call) -> list[Outcome]:
    call.context.clock.count("sketch_gathered")
    return gather_sealed(call.pieces, call.sealed, call.context, f"{call.channel} frames")


def _gather_values(call: Call, supports: Sequence[Sequence[Frame]]) -> list[Outcome]:
    """Gathered frames, of which all ranks have the supports already."""
    clock, comm, own = call.context.clock, call.context.comm, call.own
    clock.count("sketch_gathered")
    message = pack_message(replace(coded.fields, indices=b"") for coded in call.sealed)
    with clock("exchange"):
        messages = gather(message, comm, f"{call.channel} values")
    with clock("decode"):
        by_rank = [own] * comm.size
        for rank, received in enumerate(messages):
            with blaming(rank):
                frames = zip(parse(received, call.pieces, own, own_dtype), supports[rank], strict=True)
                by_rank[rank] = own if rank == comm.rank else [decode_parsed(_joined(*pair)) for pair in frames]
    with clock("accumulate"):
        return outcomes(call.pieces, by_rank, comm.rank, "all")


def _joined(values: Frame, support: Frame) -> Frame:
    if (values.count, values.record) != (support.count, support.record):
        raise FrameError("its values are not those of its support")
    return replace(values, indices=support.indices)
