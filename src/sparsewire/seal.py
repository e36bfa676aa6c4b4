"""A selection becomes a frame, and what its receivers will see of it is known at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from . import kernels, wire
from .contract import Context
from .kernels import Array
from .rng import derive_key
from .scheme import Scheme
from .sparse import Sparse, round_to


def context(dtype: str, numel: int, step: int, name: str, seed: int, rank: int) -> Context:
    key = derive_key(seed, step, name)
    return Context(dtype, numel, key=key, own_key=derive_key(key, rank))


@dataclass(frozen=True)
class Sealed:
    """A frame, the indices its receivers will see, the true values there, and what they will see of them."""

    frame: bytes
    indices: Array
    values: Array
    sent: Array


def seal(
    plan: Scheme, ctx: Context, shape: tuple[int, ...], indices: Array, values: Array, at: Callable[[Array], Array]
) -> Sealed:
    """Encodes a selection; `at` gathers values where the index codec sends other entries than were selected."""
    if is_ordered(plan):
        return _seal_ordered(plan, ctx, shape, indices, values)
    facts = replace(ctx, count=int(indices.size), finite=bool(kernels.all_finite(values)))
    body, realised = plan.indices.encode(indices, facts)
    truth = values if realised is indices else at(realised)
    offered = values if plan.indices.keeps_values else truth
    coded, approx = plan.values.encode(offered, replace(ctx, count=int(realised.size)))
    frame = wire.Frame(ctx.dtype, shape, int(realised.size), plan.record, body, coded)
    return Sealed(wire.pack(frame), realised, truth, round_to(approx, ctx.dtype))


def is_ordered(plan: Scheme) -> bool:
    """Whether entries travel in the order of the value codec, so that it needs no map."""
    return plan.indices.carries_order and plan.values.reorders


def _seal_ordered(plan: Scheme, ctx: Context, shape: tuple[int, ...], indices: Array, values: Array) -> Sealed:
    ctx = replace(ctx, count=int(indices.size), ordered=True)
    order = plan.values.order(values)
    body, _ = plan.indices.encode(indices[order], ctx)
    coded, approx = plan.values.encode(values[order], ctx)
    sent = np.empty_like(approx)
    sent[order] = approx
    frame = wire.Frame(ctx.dtype, shape, ctx.count, plan.record, body, coded)
    return Sealed(wire.pack(frame), indices, values, round_to(sent, ctx.dtype))


def at_sparse(x: Sparse) -> Callable[[Array], Array]:
    """Gathers from a `Sparse`: zero where it has no entry."""

    def at(realised: Array) -> Array:
        place = np.searchsorted(x.indices, realised)
        inside = np.minimum(place, max(0, x.count - 1))
        hit = (x.indices[inside] == realised) if x.count else np.zeros(realised.size, bool)
        return np.where(hit, x.work_values[inside] if x.count else 0, 0).astype(x.work_values.dtype)

    return at
