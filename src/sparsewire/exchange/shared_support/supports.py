"""The methods by which the ranks agree on one support per tensor and step.

Each method prepares its message, which may fail, and then agrees in a collective that every rank reaches, also one
that failed: with an empty message.

- `pool`: every rank proposes the largest 1/ranks of what it selected; the union is everyone's. Of a sparse tensor,
  which has been selected already, all entries.
- `leader`: what one rank selected, in turn, is everyone's (ScaleCom, arXiv 2104.11125). The others select only
  a number that is not finite, if there is one.
- `mask`: the entries that a pruned model has left, or those that were selected, if all ranks have the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import Scheme
from sparsewire.codecs.select import Nonzero, NotFinite
from sparsewire.core.mask import DIGEST, Mask, digest
from sparsewire.core.sparse import Sparse, magnitudes, merged
from sparsewire.errors import FrameError, PeerError
from sparsewire.frames.piece import Piece, Selected
from sparsewire.frames.seal import Selection, is_ordered
from sparsewire.frames.wire import Frame, pack_message
from sparsewire.kernels import Array

from ..base import ExchangeContext
from ..messages import FINITE, NEVER_SENT, NONFINITE, blaming, gather, read_supports

NOTHING = NotFinite()


@dataclass(frozen=True)
class Candidate:
    """A piece as this rank offers it for the shared support, and the mask that its entries lie in, if there is one."""

    offer: Selected
    mask: Mask | None = None

    @property
    def piece(self) -> Piece:
        return self.offer.piece

    @property
    def ctx(self) -> Context:
        return self.offer.ctx

    @property
    def selection(self) -> Selection:
        return self.offer.selection

    @property
    def finite(self) -> bool:
        return bool(kernels.all_finite(self.selection.values))

    def proposal(self, share: int = 1) -> Frame:
        """A frame of the largest 1/share of the entries, without values, by the scheme's index codec."""
        offer, plan = self.selection, self.offer.scheme
        sparse = isinstance(self.piece.x, Sparse)
        proposed = offer.indices if sparse else _largest(offer, -(-offer.indices.size // share))
        ordered = is_ordered(plan, offer.width)
        ctx = replace(self.ctx, count=int(proposed.size), finite=self.finite, ordered=ordered)
        body, realised = plan.indices.encode(proposed, ctx)
        return Frame(ctx.dtype, offer.shape, int(realised.size), plan.record, body, b"", offer.width)

    def fingerprint(self) -> bytes:
        """Whether what was selected is finite; a digest of the tensor's kind and of the mask, if there is one."""
        offer = self.selection
        kind = repr((offer.shape, self.ctx.dtype, self.ctx.numel, offer.width, str(offer.transform))).encode()
        return (FINITE if self.finite else NONFINITE) + digest(kind, self.mask.digest if self.mask else b"")


def _largest(offer: Selection, count: int) -> Array:
    return offer.indices[kernels.topk(magnitudes(offer.values, offer.width), count)[0]]


@dataclass(frozen=True)
class Support:
    """Entries that all ranks share; `finite` is false where some rank has said that its tensor is not."""

    indices: Array
    finite: bool = True

    @classmethod
    def agreed(cls, indices: Array, finite: bool) -> Support:
        """With one entry at least where a rank is not finite, so that all ranks see it in the sum."""
        return cls(indices if finite or indices.size else np.zeros(1, indices.dtype), finite)


# --- pool ---


class Pool:
    """The union of all ranks' proposals."""

    def __init__(self, offers: Sequence[Selected], context: ExchangeContext) -> None:
        self.candidates = [Candidate(offer) for offer in offers]
        with context.clock("encode"):
            self._message = pack_message(candidate.proposal(context.comm.size) for candidate in self.candidates)

    def agree(self, context: ExchangeContext, channel: str) -> list[Support | None]:
        pieces, own = (
            [candidate.piece for candidate in self.candidates],
            [candidate.selection for candidate in self.candidates],
        )
        with context.clock("exchange"):
            messages = gather(self._message, context.comm, channel)
        with context.clock("decode"):
            by_rank = [read_supports(message, pieces, own, rank) for rank, message in enumerate(messages)]
            return [Support(merged(parts)) for parts in zip(*by_rank, strict=True)]


# --- leader ---


class Leader:
    """What the leader of this step selected."""

    def __init__(self, offers: Sequence[Selected], context: ExchangeContext) -> None:
        self._leader = leader(context)
        self.candidates = [Candidate(offer) for offer in offers]
        with context.clock("encode"):
            leads = context.comm.rank == self._leader
            self._message = pack_message(candidate.proposal() for candidate in self.candidates) if leads else None

    def agree(self, context: ExchangeContext, channel: str) -> list[Support | None]:
        fingerprints = gather_fingerprints(self.candidates, context, channel)
        for rank, theirs in enumerate(fingerprints):
            if any(other[1:] != first[1:] for other, first in zip(theirs, fingerprints[0], strict=True)):
                raise PeerError(f"rank {rank}: it has tensors of other shapes or number types than rank 0")
        with context.clock("exchange"):
            message = memoryview(context.comm.broadcast(self._message, self._leader))
        with context.clock("decode"):
            pieces, own = (
                [candidate.piece for candidate in self.candidates],
                [candidate.selection for candidate in self.candidates],
            )
            supports = read_supports(message, pieces, own, self._leader)
        by_piece = zip(supports, zip(*fingerprints, strict=True), strict=True)
        return [Support.agreed(indices, _all_finite(part)) for indices, part in by_piece]


# --- mask ---


class Survivors:
    """The entries of each tensor that all ranks have alike; None where they differ."""

    def __init__(self, offers: Sequence[Selected], context: ExchangeContext) -> None:
        self.candidates = [Candidate(offer, _survivors(offer)) for offer in offers]

    def agree(self, context: ExchangeContext, channel: str) -> list[Support | None]:
        by_rank = gather_fingerprints(self.candidates, context, channel)
        by_piece = zip(self.candidates, zip(*by_rank, strict=True), strict=True)
        supports = [self._support(candidate, fingerprints) for candidate, fingerprints in by_piece]
        for support in supports:
            context.clock.count("masks differ" if support is None else "masks agree")
        return supports

    def _support(self, candidate: Candidate, fingerprints: Sequence[bytes]) -> Support | None:
        assert candidate.mask is not None
        same = len({fingerprint[1:] for fingerprint in fingerprints}) == 1
        return Support.agreed(candidate.mask.indices, _all_finite(fingerprints)) if same else None


def _survivors(offer: Selected) -> Mask:
    """By the model's own mask, which a gradient that is zero by chance does not change; else by the selection."""
    mask = model_mask(offer.piece, offer.scheme)
    return Mask.of(offer.selection.indices) if mask is None else mask


def model_mask(piece: Piece, scheme: Scheme) -> Mask | None:
    """The mask of a pruned model, where it says as much as the scheme's selection would."""
    return piece.mask if isinstance(scheme.select, Nonzero) and scheme.transform.is_identity else None


def leader(context: ExchangeContext) -> int:
    """The rank whose selection is everyone's in this step."""
    return context.step % context.comm.size


# --- what all need ---


def gather_fingerprints(candidates: Sequence[Candidate], context: ExchangeContext, channel: str) -> list[list[bytes]]:
    """Every rank's fingerprints of the pieces, by rank."""
    message = b"".join(candidate.fingerprint() for candidate in candidates)
    with context.clock("exchange"):
        messages = gather(message, context.comm, channel)
    return [_split_fingerprints(message, len(candidates), rank) for rank, message in enumerate(messages)]


def _split_fingerprints(message: memoryview, count: int, rank: int) -> list[bytes]:
    size = 1 + DIGEST
    with blaming(rank):
        if len(message) != count * size:
            raise FrameError(f"it tells of other tensors than the {count} that are due" if len(message) else NEVER_SENT)
    return [bytes(message[start : start + size]) for start in range(0, len(message), size)]


def _all_finite(fingerprints: Sequence[bytes]) -> bool:
    return all(fingerprint[:1] == FINITE for fingerprint in fingerprints)


METHODS: dict[str, type[Pool] | type[Leader] | type[Survivors]] = {"pool": Pool, "leader": Leader, "mask": Survivors}
