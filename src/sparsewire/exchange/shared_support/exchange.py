"""`shared`: one support per step for all ranks, and the numbers there summed by an ordinary all_reduce.

Bytes and work per rank do not grow with the ranks, as they do where every rank receives every other's frame.

1. Each rank selects; the ranks agree on a support: see `supports`.
2. Each gathers its compensated gradient there; one all_reduce sums: see `sums`.

With support=mask (PacTrain, arXiv 2505.18563) no index travels while the ranks' masks are the same; a tensor whose
masks differ goes by the coded all_gather in that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire.codecs.contract import Exchange
from sparsewire.core.sparse import Sparse, held
from sparsewire.frames.piece import Piece
from sparsewire.kernels import Array

from ..allgather import gather_pieces
from ..turn import Meant, Outcome, Turn
from .sums import SUMS, Offer, Summed
from .supports import WAYS, Look, Support


@dataclass(frozen=True)
class Shared(Exchange):
    """All ranks send the same entries: of the `pool` of their selections, of a `leader` in turn, or of a pruned model's
    `mask`. `values` is how the numbers are summed: float32, bfloat16, int8 or ternary; the scheme's own value codec
    serves only where masks differ."""

    id = "shared"
    wire_id = 4

    support: str = "pool"
    values: str = "float32"

    def check(self) -> None:
        self.expect(self.support in WAYS, f"support is one of {', '.join(WAYS)}")
        self.expect(self.values in SUMS, f"values is one of {', '.join(SUMS)}")

    @property
    def uses_masks(self) -> bool:
        return self.support == "mask"

    def exchange(self, pieces: Sequence[Piece], turn: Turn) -> list[Outcome]:
        """Moves the pieces' entries; no buffer is written."""
        channel = turn.channel(pieces)
        try:
            way = WAYS[self._way(pieces)](pieces, turn)
        except BaseException:
            self.refuse(turn.comm, channel)
            raise
        found = list(zip(way.looks, way.agree(turn, channel), strict=True))
        summed = iter(self._sum([(look, one) for look, one in found if one is not None], turn))
        coded = iter(self._gather([look.piece for look, one in found if one is None], turn))
        return [next(coded if one is None else summed) for _, one in found]

    def _way(self, pieces: Sequence[Piece]) -> str:
        """A sparse tensor is sent as it is: no leader decides what of it the others may send."""
        sparse = any(isinstance(piece.x, Sparse) for piece in pieces)
        return "pool" if sparse and self.support == "leader" else self.support

    def _sum(self, found: Sequence[tuple[Look, Support]], turn: Turn) -> list[Outcome]:
        if not found:
            return []
        with turn.clock("encode"):
            offers = [_offer(look, support, turn) for look, support in found]
        with turn.clock("exchange"):
            sums = SUMS[self.values](offers, turn.comm)
        return [_outcome(look, support, one) for (look, support), one in zip(found, sums, strict=True)]

    def _gather(self, pieces: list[Piece], turn: Turn) -> list[Outcome]:
        """On a channel of its own: slots as large as frames would be sent for digests as well."""
        return gather_pieces(pieces, turn, f"{turn.channel(pieces)} frames") if pieces else []


def _offer(look: Look, support: Support, turn: Turn) -> Offer:
    with np.errstate(all="ignore"):
        numbers = look.selection.at(support.indices)
    keeps = bool(turn.scheme.memory.buffers and look.piece.state)
    return Offer(numbers, look.ctx.dtype, keeps, look.ctx.own_key)


def _outcome(look: Look, support: Support, summed: Summed) -> Outcome:
    finite = summed.finite and support.finite
    mean = summed.mean if finite or not summed.finite else np.full_like(summed.mean, np.nan)
    return Meant(
        _sparse(look, *_without_zeros(support.indices, summed.sent, look.selection.width), look.ctx.dtype),
        _sparse(look, support.indices, mean, mean.dtype.name),
        finite,
        look.ctx.dtype,
    )


def _without_zeros(indices: Array, numbers: Array, width: int) -> tuple[Array, Array]:
    """What this rank has a part in: a memory that forgets its velocity where something was sent keeps the rest."""
    rows = numbers.reshape(-1, width)
    some = rows.any(axis=1)
    return (indices, numbers) if some.all() else (indices[some], rows[some].reshape(-1))


def _sparse(look: Look, indices: Array, numbers: Array, dtype: str) -> Sparse:
    offer = look.selection
    return Sparse.trusted(indices, held(numbers, dtype), offer.shape, dtype, offer.width, offer.transform)
