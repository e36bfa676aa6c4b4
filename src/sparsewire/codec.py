"""`encode`, `compress`, `decode`, `inspect`: scheme + array ⇄ frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from . import host, kernels, wire
from .contract import Context
from .errors import FrameError, InputError, LimitExceeded, SectionError
from .kernels import Array
from .rng import derive_key
from .scheme import Scheme, from_record, scheme
from .sparse import Sparse, round_to, work_dtype

MAX_ENTRIES = 2**28
Spec = str | Mapping[str, Any] | Scheme
Result = TypeVar("Result")


def encode(x: Any, s: Spec, *, step: int = 0, name: str = "", seed: int = 0, rank: int = 0) -> bytes:
    """The frame for a tensor: NumPy, torch (dense or COO), TensorFlow, JAX, or a `Sparse`, which is sent as it is.

    (seed, step, name) decide everything random, together with the rank where ranks should differ.

    >>> import numpy as np
    >>> frame = encode(np.array([0.0, 3.0, -1.0]), "topk(k=1)")
    >>> decode(frame).to_dense()
    array([0., 3., 0.])
    """
    plan, tensor = scheme(s), host.to_host(x)
    ctx = context(tensor.dtype, math.prod(tensor.shape), step, name, seed, rank)
    if isinstance(tensor, Sparse):
        return seal(plan, ctx, tensor.shape, tensor.indices, tensor.work_values, at_sparse(tensor)).frame
    indices, values = plan.select.pick(tensor.flat, ctx)
    return seal(plan, ctx, tensor.shape, indices, values, tensor.flat.__getitem__).frame


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


def decode(
    frame: bytes | bytearray | memoryview, *, max_numel: int | None = None, max_entries: int = MAX_ENTRIES
) -> Sparse:
    """The tensor in a frame. Bytes that are no frame, or promise more than allowed, raise a `FrameError`."""
    return decode_parsed(_open(frame, max_numel, max_entries))


def decode_parsed(parsed: wire.Frame) -> Sparse:
    """The tensor in a frame whose header has been read and found acceptable."""
    plan = from_record(parsed.record)
    ctx = Context(parsed.dtype, parsed.numel, parsed.count)
    # Values first: most codecs tell from the section's length alone that `count` is a lie.
    values = _section(lambda: plan.values.decode(memoryview(parsed.values), ctx))
    indices = _section(lambda: plan.indices.decode(memoryview(parsed.indices), ctx))
    return _section(lambda: Sparse(indices, values, parsed.shape, parsed.dtype))


def inspect(
    frame: bytes | bytearray | memoryview, *, max_numel: int | None = None, max_entries: int = MAX_ENTRIES
) -> dict[str, Any]:
    """What a frame says of itself: version, scheme, shape, k, bytes per section, bits per entry.

    `bound_bits_per_entry` is log2 C(d, k) / k: what uniformly spread indices cost at least.
    """
    parsed = _open(frame, max_numel, max_entries)
    plan, ctx = from_record(parsed.record), Context(parsed.dtype, parsed.numel, parsed.count)
    sizes = {"indices": len(parsed.indices), "values": len(parsed.values)}
    sections = {"header": len(frame) - sum(sizes.values()) - wire.CRC_SIZE, **sizes, "checksum": wire.CRC_SIZE}
    inner = {
        "indices": _section(lambda: plan.indices.parts(memoryview(parsed.indices), ctx)),
        "values": _section(lambda: plan.values.parts(memoryview(parsed.values), ctx)),
    }
    parts = {f"{slot}.{part}": size for slot, found in inner.items() for part, size in found.items()}
    entries = max(1, parsed.count)
    dense_bytes = parsed.numel * {"float64": 8, "float32": 4}.get(parsed.dtype, 2)
    return {
        "version": wire.VERSION,
        "scheme": str(plan),
        "dtype": parsed.dtype,
        "shape": parsed.shape,
        "numel": parsed.numel,
        "k": parsed.count,
        "bytes": len(frame),
        "dense_bytes": dense_bytes,
        "ratio": dense_bytes / len(frame),
        "sections": sections,
        "parts": parts,
        "bits_per_entry": {slot: 8 * size / entries for slot, size in {**sizes, "total": len(frame)}.items()},
        "bound_bits_per_entry": bound_bits(parsed.numel, parsed.count) / entries,
    }


def bound_bits(numel: int, count: int) -> float:
    """log2 C(numel, count): the bits that a set of `count` indices costs at least if all sets are equally likely.

    >>> round(bound_bits(1_000_000, 10_000) / 10_000, 2)
    8.08
    """
    logs = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return max(0.0, logs / math.log(2))


# --- encoding ----------------------------------------------------------------------------------------------------


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
    body, realised = plan.indices.encode(indices, replace(ctx, count=int(indices.size)))
    if realised is not indices:
        values = at(realised)
    coded, approx = plan.values.encode(values, replace(ctx, count=int(realised.size)))
    frame = wire.Frame(ctx.dtype, shape, int(realised.size), plan.record, body, coded)
    return Sealed(wire.pack(frame), realised, values, round_to(approx, ctx.dtype))


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
    with np.errstate(all="ignore"):
        rest = sealed.values - sealed.sent
    if residual is not None:
        rest = np.where(np.isfinite(rest), rest, at_sparse(residual)(sealed.indices))
    some = np.flatnonzero(rest)
    return sealed.frame, Sparse(sealed.indices[some], rest[some], x.shape, x.dtype)


def at_sparse(x: Sparse) -> Callable[[Array], Array]:
    """Gathers from a `Sparse`: zero where it has no entry."""

    def at(realised: Array) -> Array:
        place = np.searchsorted(x.indices, realised)
        inside = np.minimum(place, max(0, x.count - 1))
        hit = (x.indices[inside] == realised) if x.count else np.zeros(realised.size, bool)
        return np.where(hit, x.work_values[inside] if x.count else 0, 0).astype(x.work_values.dtype)

    return at


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


# --- decoding ----------------------------------------------------------------------------------------------------


def _open(frame: bytes | bytearray | memoryview, max_numel: int | None, max_entries: int) -> wire.Frame:
    parsed = wire.unpack(frame, max_numel)
    if parsed.count > max_entries:
        raise LimitExceeded(f"{parsed.count} entries, the caller allows max_entries={max_entries}")
    return parsed


def _section(read: Callable[[], Result]) -> Result:
    """Whatever a codec says against its section comes out as one kind of error."""
    try:
        return read()
    except FrameError:
        raise
    except ValueError as error:
        raise SectionError(str(error)) from None
