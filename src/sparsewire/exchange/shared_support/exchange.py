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

from sparsewire.codecs.contract import Select
from sparsewire.core.sparse import Sparse, held
from sparsewire.frames.piece import Piece, Selected
from sparsewire.kernels import Array

from ..allgather import announcing_failure, gather_sealed
from ..base import Exchange, ExchangeContext, Outcome, SparseMean
from .sums import SUMS, Summand, Summed
from .supports import METHODS, NOTHING, Candidate, Support, leader, model_mask


@dataclass(frozen=True)
class SharedSupport(Exchange):
    """All ranks send the same entries: of the `pool` of their selections, of a `leader` in turn, or of a pruned model's
    `mask`. `values` is how the numbers are summed: float32, bfloat16, int8 or ternary; the scheme's own value codec
    serves only where masks differ."""

    id = "shared"
    wire_id = 4

    support: str = "pool"
    values: str = "float32"

    def check(self) -> None:
        self.expect(self.support in METHODS, f"support is one of {', '.join(METHODS)}")
        self.expect(self.values in SUMS, f"values is one of {', '.join(SUMS)}")

    @property
    def uses_masks(self) -> bool:
        return self.support == "mask"

    def selects(self, pieces: Sequence[Piece], context: ExchangeContext) -> list[Select]:
        """Whoever does not lead, or knows the survivors from the model, looks for a number that is not finite."""
        method, own = self._method(pieces), context.scheme.select
        if method == "leader":
            return [own if context.comm.rank == leader(context) else NOTHING] * len(pieces)
        known = [method == "mask" and model_mask(piece, context.scheme) is not None for piece in pieces]
        return [NOTHING if masked else own for masked in known]

    def exchange(self, offers: Sequence[Selected], context: ExchangeContext) -> list[Outcome]:
        """Moves the offers' entries; no buffer is written."""
        pieces = [offer.piece for offer in offers]
        channel = context.channel(pieces)
        with announcing_failure(context.comm, channel):
            method = METHODS[self._method(pieces)](offers, context)
        supports = list(zip(method.candidates, method.agree(context, channel), strict=True))
        summed = iter(
            self._sum([(candidate, support) for candidate, support in supports if support is not None], context)
        )
        coded = iter(self._gather([candidate.piece for candidate, support in supports if support is None], context))
        return [next(coded if support is None else summed) for _, support in supports]

    def _method(self, pieces: Sequence[Piece]) -> str:
        """A sparse tensor is sent as it is: no leader decides what of it the others may send."""
        sparse = any(isinstance(piece.x, Sparse) for piece in pieces)
        return "pool" if sparse and self.support == "leader" else self.support

    def _sum(self, supports: Sequence[tuple[Candidate, Support]], context: ExchangeContext) -> list[Outcome]:
        if not supports:
            return []
        with context.clock("encode"):
            numbers = [_summand(candidate, support, context) for candidate, support in supports]
        with context.clock("exchange"):
            sums = SUMS[self.values](numbers, context.comm)
        return [
            _outcome(candidate, support, summed) for (candidate, support), summed in zip(supports, sums, strict=True)
        ]

    def _gather(self, pieces: list[Piece], context: ExchangeContext) -> list[Outcome]:
        """By the scheme's own selection, on a channel of its own: slots as large as frames would be sent for digests
        as well."""
        if not pieces:
            return []
        channel = f"{context.channel(pieces)} frames"
        with announcing_failure(context.comm, channel):
            sealed = [context.encode(context.select_by(context.scheme.select, piece)) for piece in pieces]
        return gather_sealed(pieces, sealed, context, channel)


def _summand(candidate: Candidate, support: Support, context: ExchangeContext) -> Summand:
    with np.errstate(all="ignore"):
        numbers = candidate.selection.at(support.indices)
    keeps = bool(context.scheme.memory.buffers and candidate.piece.state)
    return Summand(numbers, candidate.ctx.dtype, keeps, candidate.ctx.own_key)


def _outcome(candidate: Candidate, support: Support, summed: Summed) -> Outcome:
    finite = summed.finite and support.finite
    mean = summed.mean if finite or not summed.finite else np.full_like(summed.mean, np.nan)
    return SparseMean(
        _sparse(
            candidate, *_without_zeros(support.indices, summed.sent, candidate.selection.width), candidate.ctx.dtype
        ),
        _sparse(candidate, support.indices, mean, mean.dtype.name),
        finite,
        candidate.ctx.dtype,
    )


def _without_zeros(indices: Array, numbers: Array, width: int) -> tuple[Array, Array]:
    """What this rank has a part in: a memory that forgets its velocity where something was sent keeps the rest."""
    rows = numbers.reshape(-1, width)
    nonzero = rows.any(axis=1)
    return (indices, numbers) if nonzero.all() else (indices[nonzero], rows[nonzero].reshape(-1))


def _sparse(candidate: Candidate, indices: Array, numbers: Array, dtype: str) -> Sparse:
    offer = candidate.selection
    return Sparse.trusted(indices, held(numbers, dtype), offer.shape, dtype, offer.width, offer.transform)
