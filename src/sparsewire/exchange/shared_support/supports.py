"""How the ranks come to one support per tensor and step.

Each method prepares what it has to say, which may fail, and then agrees in a collective that every rank reaches, also
one that failed: with nothing to say.

- `pool`: every rank proposes the largest 1/ranks of what it selected; the union is everyone's. Of a sparse tensor,
  which has been selected already, all entries.
- `leader`: what one rank selected, in turn, is everyone's (ScaleCom, arXiv 2104.11125). The others look only for what
  is not finite.
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
from ..messages import FINITE, NEVER_SENT, SPOILED, blaming, gather, read_supports

NOTHING = NotFinite()


@dataclass(frozen=True)
class Look:
    """What this rank offers of a piece, and the mask that its entries lie in, if there is one."""

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
        some = offer.indices if isinstance(self.piece.x, Sparse) else _largest(offer, -(-offer.indices.size // share))
        ordered = is_ordered(plan, offer.width)
        ctx = replace(self.ctx, count=int(some.size), finite=self.finite, ordered=ordered)
        body, realised = plan.indices.encode(some, ctx)
        return Frame(ctx.dtype, offer.shape, int(realised.size), plan.record, body, b"", offer.width)

    def told(self) -> bytes:
        """Whether what was selected is finite; a digest of the tensor's kind and of the mask, if there is one."""
        offer = self.selection
        kind = repr((offer.shape, self.ctx.dtype, self.ctx.numel, offer.width, str(offer.transform))).encode()
        found = digest(kind, self.mask.digest if self.mask else b"")
        return (FINITE if self.finite else SPOILED) + found


def _largest(offer: Selection, count: int) -> Array:
    return offer.indices[kernels.topk(magnitudes(offer.values, offer.width), count)[0]]


@dataclass(frozen=True)
class Support:
    """Entries that all ranks share; `finite` is false where some rank has said that its tensor is not."""

    indices: Array
    finite: bool = True

    @classmethod
    def told(cls, indices: Array, finite: bool) -> Support:
        """With an entry that shows all ranks what is not finite, even if nothing was selected."""
        return cls(indices if finite or indices.size else np.zeros(1, indices.dtype), finite)


# --- pool ---


class Pool:
    """The union of all ranks' proposals."""

    def __init__(self, offers: Sequence[Selected], context: ExchangeContext) -> None:
        self.looks = [Look(offer) for offer in offers]
        with context.clock("encode"):
            self._mine = pack_message(look.proposal(context.comm.size) for look in self.looks)

    def agree(self, context: ExchangeContext, channel: str) -> list[Support | None]:
        pieces, own = [look.piece for look in self.looks], [look.selection for look in self.looks]
        with context.clock("exchange"):
            messages = gather(self._mine, context.comm, channel)
        with context.clock("decode"):
            by_rank = [read_supports(message, pieces, own, rank) for rank, message in enumerate(messages)]
            return [Support(merged(parts)) for parts in zip(*by_rank, strict=True)]


# --- leader ---


class Leader:
    """What the leader of this step selected."""

    def __init__(self, offers: Sequence[Selected], context: ExchangeContext) -> None:
        self._leader = leader(context)
        self.looks = [Look(offer) for offer in offers]
        with context.clock("encode"):
            leads = context.comm.rank == self._leader
            self._mine = pack_message(look.proposal() for look in self.looks) if leads else None

    def agree(self, context: ExchangeContext, channel: str) -> list[Support | None]:
        told = heard(self.looks, context, channel)
        for rank, theirs in enumerate(told):
            if any(one[1:] != mine[1:] for one, mine in zip(theirs, told[0], strict=True)):
                raise PeerError(f"rank {rank}: it has tensors of other shapes or number types than rank 0")
        with context.clock("exchange"):
            message = memoryview(context.comm.broadcast(self._mine, self._leader))
        with context.clock("decode"):
            pieces, own = [look.piece for look in self.looks], [look.selection for look in self.looks]
            found = read_supports(message, pieces, own, self._leader)
        by_piece = zip(found, zip(*told, strict=True), strict=True)
        return [Support.told(indices, _all_finite(part)) for indices, part in by_piece]


# --- mask ---


class Survivors:
    """The entries of each tensor that all ranks have alike; None where they differ."""

    def __init__(self, offers: Sequence[Selected], context: ExchangeContext) -> None:
        self.looks = [Look(one, _survivors(one)) for one in offers]

    def agree(self, context: ExchangeContext, channel: str) -> list[Support | None]:
        told = heard(self.looks, context, channel)
        parts = zip(self.looks, zip(*told, strict=True), strict=True)
        found = [self._support(look, part) for look, part in parts]
        for one in found:
            context.clock.count("masks differ" if one is None else "masks agree")
        return found

    def _support(self, look: Look, told: Sequence[bytes]) -> Support | None:
        assert look.mask is not None
        same = len({one[1:] for one in told}) == 1
        return Support.told(look.mask.indices, _all_finite(told)) if same else None


def _survivors(one: Selected) -> Mask:
    """By the model's own mask, which a gradient that is zero by chance does not change; else by the selection."""
    mask = model_mask(one.piece, one.scheme)
    return Mask.of(one.selection.indices) if mask is None else mask


def model_mask(piece: Piece, scheme: Scheme) -> Mask | None:
    """The mask of a pruned model, where it says as much as the scheme's selection would."""
    return piece.mask if isinstance(scheme.select, Nonzero) and scheme.transform.is_identity else None


def leader(context: ExchangeContext) -> int:
    """The rank whose selection is everyone's in this step."""
    return context.step % context.comm.size


# --- what all need ---


def heard(looks: Sequence[Look], context: ExchangeContext, channel: str) -> list[list[bytes]]:
    """What every rank tells of each piece."""
    mine = b"".join(look.told() for look in looks)
    with context.clock("exchange"):
        messages = gather(mine, context.comm, channel)
    return [_told(message, len(looks), rank) for rank, message in enumerate(messages)]


def _told(message: memoryview, count: int, rank: int) -> list[bytes]:
    size = 1 + DIGEST
    with blaming(rank):
        if len(message) != count * size:
            raise FrameError(f"it tells of other tensors than the {count} that are due" if len(message) else NEVER_SENT)
    return [bytes(message[start : start + size]) for start in range(0, len(message), size)]


def _all_finite(told: Sequence[bytes]) -> bool:
    return all(one[:1] == FINITE for one in told)


METHODS: dict[str, type[Pool] | type[Leader] | type[Survivors]] = {"pool": Pool, "leader": Leader, "mask": Survivors}
