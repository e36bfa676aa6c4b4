"""`compress`: a frame, and what it does not say: x − decode(frame), found without decoding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import host, kernels
from .contract import Context
from .errors import InputError
from .kernels import Array
from .scheme import Scheme, Spec, scheme
from .seal import Sealed, at_sparse, context, seal
from .sparse import Sparse, work_dtype


def compress(
    x: Any, s: Spec, *, step: int = 0, name: str = "", seed: int = 0, rank: int = 0, residual: Any = None
) -> tuple[bytes, Any]:
    """(frame, residual): what `encode` sends for x (+ residual, if one is given), and what is left.

    What is left is x − decode(frame), exactly: one subtraction where something was sent, x itself elsewhere. A residual
    that is given is updated in place; where x is not finite the frame says so and the residual stays as it was.

    >>> import numpy as np
    >>> frame, left = compress(np.array([0.5, 3.0, -1.0]), "topk(k=1)")
    >>> left
    array([ 0.5,  0. , -1. ])
    """
    plan, tensor = scheme(s), host.to_host(x)
    ctx = context(tensor.dtype, math.prod(tensor.shape), step, name, seed, rank)
    if isinstance(tensor, Sparse):
        return _compress_sparse(plan, ctx, tensor, residual)
    if residual is None:
        left = tensor.flat.copy()
        indices, values = plan.select.pick(tensor.flat, ctx)
        sealed = seal(plan, ctx, tensor.shape, indices, values, tensor.flat.__getitem__)
        keep(left, sealed)
        return sealed.frame, host.like(x, left, tensor)
    return _compensate(plan, ctx, tensor, residual), residual


def _compensate(plan: Scheme, ctx: Context, x: host.Dense, residual: Any) -> bytes:
    """Seals x + residual and updates the residual in place."""
    kept = writable_residual(residual, x.flat.size, x.dtype)
    in_place = host.shares_memory(residual, kept.flat)
    indices, values = plan.select.pick_compensated(kept.flat, x.flat, ctx)
    sealed = seal(plan, ctx, x.shape, indices, values, _at_residual(kept.flat, indices, values))
    keep_finite(kept.flat, sealed)
    if not in_place:
        host.write_back(residual, kept.flat)
    return sealed.frame


def writable_residual(residual: Any, numel: int, dtype: str) -> host.Dense:
    """A residual that can be updated in place."""
    kept = host.to_host(residual) if host.is_writable(residual) else None
    if not isinstance(kept, host.Dense) or kept.flat.size != numel or kept.flat.dtype != work_dtype(dtype):
        raise InputError(
            f"the residual must be a dense array or torch tensor that can be written, of {numel} elements and a dtype "
            f"that goes with {dtype}"
        )
    return kept


def _compress_sparse(plan: Scheme, ctx: Context, x: Sparse, residual: Any) -> tuple[bytes, Any]:
    """A `Sparse` is sent as it is. A dense residual takes part at its entries; otherwise what is left is a `Sparse`."""
    if residual is None or isinstance(residual, Sparse):
        return _compress_to_sparse(plan, ctx, x, residual)
    kept = writable_residual(residual, x.numel, x.dtype)
    with np.errstate(all="ignore"):
        values = kept.flat[x.indices] + x.work_values
    finite = np.isfinite(values)
    kernels.scatter(kept.flat, x.indices[finite], values[finite])
    sealed = seal(plan, ctx, x.shape, x.indices, values, _at_residual(kept.flat, x.indices, values))
    keep_finite(kept.flat, sealed)
    if not host.shares_memory(residual, kept.flat):
        host.write_back(residual, kept.flat)
    return sealed.frame, residual


def _compress_to_sparse(plan: Scheme, ctx: Context, x: Sparse, residual: Sparse | None) -> tuple[bytes, Sparse]:
    total = x if residual is None else add(x, residual)
    sealed = seal(plan, ctx, x.shape, total.indices, total.work_values, at_sparse(total))
    indices, rest = unsent(total, sealed)
    if residual is not None:
        rest = np.where(np.isfinite(rest), rest, at_sparse(residual)(indices))
    some = np.flatnonzero(rest)
    return sealed.frame, Sparse(indices[some], rest[some], x.shape, x.dtype)


def keep(left: Array, sealed: Sealed) -> None:
    """What was not sent: `left`, which holds the whole input, less what the receivers will see."""
    with np.errstate(invalid="ignore"):
        kernels.scatter(left, sealed.indices, sealed.values - sealed.sent)


def keep_finite(residual: Array, sealed: Sealed) -> None:
    """The same for a residual that goes on living: where the input is not finite, it stays as it is."""
    with np.errstate(invalid="ignore"):
        rest = sealed.values - sealed.sent
    finite = np.isfinite(rest)
    if finite.all():
        kernels.scatter(residual, sealed.indices, rest)
    else:
        kernels.scatter(residual, sealed.indices[finite], rest[finite])


def unsent(total: Sparse, sealed: Sealed) -> tuple[Array, Array]:
    """(indices, values) of what is left of a sparse input, those that the index codec left out among them."""
    with np.errstate(all="ignore"):
        rest = sealed.values - sealed.sent
    if sealed.indices is total.indices:
        return sealed.indices, rest
    missed = ~np.isin(total.indices, sealed.indices)
    indices = np.concatenate([sealed.indices, total.indices[missed]])
    order = np.argsort(indices)
    return indices[order], np.concatenate([rest, total.work_values[missed]])[order]


def _at_residual(residual: Array, indices: Array, values: Array) -> Callable[[Array], Array]:
    """Gathers from a compensated residual, which does not hold those selected values that are not finite."""

    def at(realised: Array) -> Array:
        gathered = residual[realised]
        odd = np.isin(indices, realised) & ~np.isfinite(values)
        gathered[np.searchsorted(realised, indices[odd])] = values[odd]
        return gathered

    return at


def add(a: Sparse, b: Sparse) -> Sparse:
    """The sum of two sparse tensors of one shape and dtype."""
    if a.shape != b.shape or a.dtype != b.dtype:
        raise InputError(f"{a!r} and {b!r} cannot be added")
    indices = np.union1d(a.indices, b.indices)
    with np.errstate(all="ignore"):
        return Sparse(indices, at_sparse(a)(indices) + at_sparse(b)(indices), a.shape, a.dtype)
