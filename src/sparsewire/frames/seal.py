"""A selection becomes a frame, and what its receivers will see of it is known at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import Scheme
from sparsewire.core.sparse import Domain, Sparse, held
from sparsewire.kernels import Array

from . import wire


@dataclass(frozen=True)
class Selection:
    """What a rank offers to send: entries, their numbers in the work dtype, and `at`, which gathers others."""

    indices: Array
    values: Array
    at: Callable[[Array], Array]
    shape: tuple[int, ...]
    width: int = 1
    transform: Domain | None = None


@dataclass(frozen=True)
class Sealed:
    """A frame's fields, and the entries that its receivers will see."""

    fields: wire.Frame
    sent: Sparse

    @property
    def frame(self) -> bytes:
        return wire.pack(self.fields)


def seal(scheme: Scheme, ctx: Context, offer: Selection) -> Sealed:
    """Encodes a selection; values are gathered anew where the index codec sends other entries than were selected."""
    if is_ordered(scheme, offer.width):
        return _seal_ordered(scheme, ctx, offer)
    finite = bool(kernels.all_finite(offer.values))
    body, realised = scheme.indices.encode(offer.indices, replace(ctx, count=int(offer.indices.size), finite=finite))
    same = realised is offer.indices or (scheme.indices.keeps_values and realised.size == offer.indices.size)
    numbers = offer.values if same else offer.at(realised)
    coded, approx = scheme.values.encode(numbers, replace(ctx, count=int(numbers.size)))
    return _sealed(scheme, ctx, offer, realised, body, coded, approx)


def is_ordered(scheme: Scheme, width: int) -> bool:
    """Whether entries travel in the order of the value codec, so that it needs no map."""
    return width == 1 and scheme.indices.carries_order and scheme.values.reorders


def _seal_ordered(scheme: Scheme, ctx: Context, offer: Selection) -> Sealed:
    ctx = replace(ctx, count=int(offer.indices.size), ordered=True)
    order = scheme.values.order(offer.values)
    body, _ = scheme.indices.encode(offer.indices[order], ctx)
    coded, approx = scheme.values.encode(offer.values[order], ctx)
    sent = np.empty_like(approx)
    sent[order] = approx
    return _sealed(scheme, ctx, offer, offer.indices, body, coded, sent)


def _sealed(
    scheme: Scheme, ctx: Context, offer: Selection, indices: Array, body: bytes, coded: bytes, numbers: Array
) -> Sealed:
    frame = wire.Frame(ctx.dtype, offer.shape, int(indices.size), scheme.record, body, coded, offer.width)
    sent = Sparse.trusted(indices, held(numbers, ctx.dtype), offer.shape, ctx.dtype, offer.width, offer.transform)
    return Sealed(frame, sent)
