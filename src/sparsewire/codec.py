"""`encode`, `decode`, `inspect`: scheme + array ⇄ frame."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from . import host, wire
from .contract import Context
from .errors import FrameError, LimitExceeded, SectionError
from .scheme import Scheme, Spec, from_record, scheme
from .seal import at_sparse, context, is_ordered, seal
from .sparse import Sparse

MAX_ENTRIES = 2**28
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


def decode(
    frame: bytes | bytearray | memoryview, *, max_numel: int | None = None, max_entries: int = MAX_ENTRIES
) -> Sparse:
    """The tensor in a frame. Bytes that are no frame, or promise more than allowed, raise a `FrameError`."""
    return decode_parsed(_open(frame, max_numel, max_entries))


def decode_parsed(parsed: wire.Frame) -> Sparse:
    """The tensor in a frame whose header has been read and found acceptable."""
    plan = from_record(parsed.record)
    ctx = Context(parsed.dtype, parsed.numel, parsed.count, ordered=is_ordered(plan))
    if ctx.ordered:
        return _section(lambda: _decode_ordered(parsed, plan, ctx))
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
    plan = from_record(parsed.record)
    ctx = Context(parsed.dtype, parsed.numel, parsed.count, ordered=is_ordered(plan))
    sizes = {"indices": len(parsed.indices), "values": len(parsed.values)}
    sections = {"header": len(frame) - sum(sizes.values()) - wire.CRC_SIZE, **sizes, "checksum": wire.CRC_SIZE}
    inner = {
        "indices": _section(lambda: plan.indices.parts(memoryview(parsed.indices), ctx)),
        "values": _section(lambda: plan.values.parts(memoryview(parsed.values), ctx)),
    }
    parts = {f"{slot}.{part}": size for slot, found in inner.items() for part, size in found.items()}
    notes = _section(lambda: plan.values.notes(memoryview(parsed.values), ctx))
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
        "notes": {f"values.{name}": value for name, value in notes.items()},
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


def _open(frame: bytes | bytearray | memoryview, max_numel: int | None, max_entries: int) -> wire.Frame:
    parsed = wire.unpack(frame, max_numel)
    if parsed.count > max_entries:
        raise LimitExceeded(f"{parsed.count} entries, the caller allows max_entries={max_entries}")
    return parsed


def _decode_ordered(parsed: wire.Frame, plan: Scheme, ctx: Context) -> Sparse:
    """Entries back in ascending order. Indices first: values without a map may be few bytes for any count."""
    indices = plan.indices.decode(memoryview(parsed.indices), ctx)
    values = plan.values.decode(memoryview(parsed.values), ctx)
    order = np.argsort(indices, kind="stable")
    return Sparse(indices[order], values[order], parsed.shape, parsed.dtype)


def _section(read: Callable[[], Result]) -> Result:
    """Whatever a codec says against its section, or dies of, comes out as one kind of error."""
    try:
        return read()
    except FrameError:
        raise
    except Exception as error:
        raise SectionError(str(error) or type(error).__name__) from error
