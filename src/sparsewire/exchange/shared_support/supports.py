"""How the ranks come to one support per tensor and step.

Each way looks at its pieces first, which may fail, and then agrees in a collective that every rank reaches, also one
that failed: with nothing to say.

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
from sparsewire.frames.piece import Piece
from sparsewire.frames.seal import Selection, is_ordered
from sparsewire.frames.wire import Frame, pack_message
from sparsewire.kernels import Array

from ..messages import FINITE, NEVER_SENT, SPOILED, blaming, gather, read_supports
from ..turn import Turn

NOTHING = NotFinite()


@dataclass(frozen=True)
class Look:
    """A piece with what this rank selected of it."""

    piece: Piece
    ctx: Context
    selection: Selection
    mask: Mask | None = None

    @classmethod
    def at(cls, piece: Piece, turn: Turn, scheme: Scheme, mask: Mask | None = None) -> Look:
        selection, ctx = replace(turn, scheme=scheme).select(piece)
        return cls(piece, ctx, selection, mask)

    @property
    def finite(self) -> bool:
        return bool(kernels.all_finite(self.selection.values))

    def proposal(self, scheme: Scheme, share: int = 1) -> Frame:
        """A frame of the largest 1/share of the entries, without values, by the scheme's index codec."""
        offer, plan = self.selection, self.piece.scheme_for(scheme)
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

    def __init__(self, pieces: Sequence[Piece], turn: Turn) -> None:
        self.looks = [Look.at(piece, turn, turn.scheme) for piece in pieces]
        with turn.clock("encode"):
            self._mine = pack_message(look.proposal(turn.scheme, turn.comm.size) for look in self.looks)

    def agree(self, turn: Turn, channel: str) -> list[Support | None]:
        pieces, own = [look.piece for look in self.looks], [look.selection for look in self.looks]
        with turn.clock("exchange"):
            messages = gather(self._mine, turn.comm, channel)
        with turn.clock("decode"):
            by_rank = [read_supports(message, pieces, own, rank) for rank, message in enumerate(messages)]
            return [Support(merged(parts)) for parts in zip(*by_rank, strict=True)]


# --- leader ---


class Leader:
    """What the leader of this step selected."""

    def __init__(self, pieces: Sequence[Piece], turn: Turn) -> None:
        self._leader = turn.step % turn.comm.size
        leads = turn.comm.rank == self._leader
        plan = turn.scheme if leads else replace(turn.scheme, select=NOTHING)
        self.looks = [Look.at(piece, turn, plan) for piece in pieces]
        with turn.clock("encode"):
            self._mine = pack_message(look.proposal(turn.scheme) for look in self.looks) if leads else None

    def agree(self, turn: Turn, channel: str) -> list[Support | None]:
        told = heard(self.looks, turn, channel)
        for rank, theirs in enumerate(told):
            if any(one[1:] != mine[1:] for one, mine in zip(theirs, told[0], strict=True)):
                raise PeerError(f"rank {rank}: it has tensors of other shapes or number types than rank 0")
        with turn.clock("exchange"):
            message = memoryview(turn.comm.broadcast(self._mine, self._leader))
        with turn.clock("decode"):
            pieces, own = [look.piece for look in self.looks], [look.selection for look in self.looks]
            found = read_supports(message, pieces, own, self._leader)
        by_piece = zip(found, zip(*told, strict=True), strict=True)
        return [Support.told(indices, _all_finite(part)) for indices, part in by_piece]


# --- mask ---


class Survivors:
    """The entries of each tensor that all ranks have alike; None where they differ."""

    def __init__(self, pieces: Sequence[Piece], turn: Turn) -> None:
        self.looks = [_survivors(piece, turn) for piece in pieces]

    def agree(self, turn: Turn, channel: str) -> list[Support | None]:
        told = heard(self.looks, turn, channel)
        parts = zip(self.looks, zip(*told, strict=True), strict=True)
        found = [self._support(look, part) for look, part in parts]
        for one in found:
            turn.clock.count("masks differ" if one is None else "masks agree")
        return found

    def _support(self, look: Look, told: Sequence[bytes]) -> Support | None:
        assert look.mask is not None
        same = len({one[1:] for one in told}) == 1
        return Support.told(look.mask.indices, _all_finite(told)) if same else None


def _survivors(piece: Piece, turn: Turn) -> Look:
    """By the model's own mask, which a gradient that is zero by chance does not change; else by the selection."""
    scheme = turn.scheme
    if piece.mask is not None and isinstance(scheme.select, Nonzero) and scheme.transform.is_identity:
        return Look.at(piece, turn, replace(scheme, select=NOTHING), piece.mask)
    look = Look.at(piece, turn, scheme)
    return replace(look, mask=Mask.of(look.selection.indices))


# --- what all need ---


def heard(looks: Sequence[Look], turn: Turn, channel: str) -> list[list[bytes]]:
    """What every rank tells of each piece."""
    mine = b"".join(look.told() for look in looks)
    with turn.clock("exchange"):
        messages = gather(mine, turn.comm, channel)
    return [_told(message, len(looks), rank) for rank, message in enumerate(messages)]


def _told(message: memoryview, count: int, rank: int) -> list[bytes]:
    size = 1 + DIGEST
    with blaming(rank):
        if len(message) != count * size:
            raise FrameError(f"it tells of other tensors than the {count} that are due" if len(message) else NEVER_SENT)
    return [bytes(message[start : start + size]) for start in range(0, len(message), size)]


def _all_finite(told: Sequence[bytes]) -> bool:
    return all(one[:1] == FINITE for one in told)


WAYS: dict[str, type[Pool] | type[Leader] | type[Survivors]] = {"pool": Pool, "leader": Leader, "mask": Survivors}
