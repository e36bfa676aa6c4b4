"""`encode`, `decode`, `inspect`: scheme + array ⇄ frame."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from sparsewire.codecs.contract import Context, State
from sparsewire.codecs.scheme import Scheme, Spec, from_record, scheme
from sparsewire.core import host
from sparsewire.core.sparse import Sparse
from sparsewire.errors import FrameError, HeaderError, LimitExceeded, SectionError
from sparsewire.kernels import Array

from . import wire
from .piece import Piece
from .seal import is_ordered

MAX_ENTRIES = 2**22  # numbers that any frame may hold unless the caller says otherwise; larger frames: more
ENTRIES_PER_BYTE = 16
Result = TypeVar("Result")


def encode(x: Any, s: Spec, *, step: int = 0, name: str = "", seed: int = 0, rank: int = 0) -> bytes:
    """The frame for a tensor: NumPy, torch (dense or COO), TensorFlow, JAX, or a `Sparse`, which is sent as it is.

    (seed, step, name) decide everything random, together with the rank where ranks should differ.

    >>> import numpy as np
    >>> frame = encode(np.array([0.0, 3.0, -1.0]), "topk(k=1)")
    >>> decode(frame).to_dense()
    array([0., 3., 0.])
    """
    return piece_of(host.to_host(x), name).seal(scheme(s), step, seed, rank).frame


def piece_of(tensor: host.Dense | Sparse, name: str, state: State | None = None) -> Piece:
    flat = tensor if isinstance(tensor, Sparse) else tensor.flat
    return Piece(name, flat, tensor.shape, tensor.dtype, {} if state is None else state)


def decode(frame: wire.Data, *, max_numel: int | None = None, max_entries: int | None = None) -> Sparse:
    """The tensor in a frame. Bytes that are no frame, or promise more than allowed, raise a `FrameError`.

    `max_entries` is the most numbers that the frame may hold: by default 2**22, or 16 per byte of the frame if that is
    more. `max_numel` is the most elements that the tensor may have, which matters to those who call `to_dense()`.

    >>> import numpy as np
    >>> everything = encode(np.ones(2**22 + 1, np.float32), "topk(100%)")     # less than 100 bytes
    >>> decode(everything, max_entries=2**23).count
    4194305
    """
    return decode_parsed(_open(frame, max_numel, max_entries))


def decode_bundle(data: wire.Data, *, max_numel: int | None = None, max_entries: int | None = None) -> list[Sparse]:
    """The tensors of a bundle (`wire.pack_bundle`): `max_numel` is for each of them, `max_entries` for all together."""
    frames = wire.unpack_bundle(data, max_numel)
    _allow(sum(frame.count for frame in frames), frames[0].width, _most(data, max_entries))
    return [decode_parsed(frame) for frame in frames]


def decode_parsed(parsed: wire.Frame) -> Sparse:
    """The tensor in a frame whose header has been read and found acceptable."""
    s = from_record(parsed.record)
    numbers, entries = _contexts(parsed, s)
    if entries.ordered:
        return _section(lambda: _decode_ordered(parsed, s, entries))
    # Values first: most codecs tell from the section's length alone that `count` is a lie.
    values = _section(lambda: s.values.decode(memoryview(parsed.values), numbers))
    indices = _section(lambda: s.indices.decode(memoryview(parsed.indices), entries))
    return _section(lambda: _sparse(parsed, s, indices, values))


def decode_support(parsed: wire.Frame) -> Array:
    """The entries of a frame, ascending, without their numbers."""
    s = from_record(parsed.record)
    _, entries = _contexts(parsed, s)

    def read() -> Array:
        indices = s.indices.decode(memoryview(parsed.indices), entries)
        indices = np.sort(indices) if entries.ordered else indices
        return Sparse(indices, np.zeros(indices.size, np.float32), (entries.numel,)).indices

    return _section(read)


def _contexts(parsed: wire.Frame, s: Scheme) -> tuple[Context, Context]:
    """(the value codec's context, the index codec's); the counts are checked against the tensor's size."""
    transform, width = s.transform.fitted(parsed.shape), parsed.width
    size = parsed.numel // width if transform.is_identity else transform.size(parsed.numel)
    if parsed.numel % width if transform.is_identity else width != transform.width:
        raise HeaderError(f"a tensor of {parsed.numel} elements has no entries of {width} numbers after {transform}")
    if parsed.count > size:
        raise HeaderError(f"{parsed.count} entries in a tensor that has {size}")
    entries = Context(parsed.dtype, size, parsed.count, ordered=is_ordered(s, width))
    return replace(entries, count=parsed.count * width), entries


def _sparse(parsed: wire.Frame, s: Scheme, indices: Array, values: Array) -> Sparse:
    transform = None if s.transform.is_identity else s.transform.fitted(parsed.shape)
    return Sparse(indices, values, parsed.shape, parsed.dtype, parsed.width, transform)


def inspect(frame: wire.Data, *, max_numel: int | None = None, max_entries: int | None = None) -> dict[str, Any]:
    """What a frame says of itself: version, scheme, shape, k, bytes per section, bits per entry.

    `bound_bits_per_entry` is log2 C(d, k) / k: what uniformly spread indices cost at least.
    """
    parsed = _open(frame, max_numel, max_entries)
    s = from_record(parsed.record)
    value_ctx, index_ctx = _contexts(parsed, s)
    sizes = {"indices": len(parsed.indices), "values": len(parsed.values)}
    sections = {"header": len(frame) - sum(sizes.values()) - wire.CRC_SIZE, **sizes, "checksum": wire.CRC_SIZE}
    inner = {
        "indices": _section(lambda: s.indices.parts(memoryview(parsed.indices), index_ctx)),
        "values": _section(lambda: s.values.parts(memoryview(parsed.values), value_ctx)),
    }
    parts = {f"{slot}.{part}": size for slot, sizes_by_part in inner.items() for part, size in sizes_by_part.items()}
    notes = _section(lambda: s.values.notes(memoryview(parsed.values), value_ctx))
    about = {} if s.transform.is_identity else s.transform.notes(index_ctx.numel, parsed.count)
    entries = max(1, parsed.count)
    dense_bytes = parsed.numel * {"float64": 8, "float32": 4}.get(parsed.dtype, 2)
    return {
        "version": wire.VERSION,
        "scheme": str(s),
        "dtype": parsed.dtype,
        "shape": parsed.shape,
        "numel": parsed.numel,
        "entries": index_ctx.numel,
        "k": parsed.count,
        "width": parsed.width,
        "bytes": len(frame),
        "dense_bytes": dense_bytes,
        "ratio": dense_bytes / len(frame),
        "sections": sections,
        "parts": parts,
        "notes": {
            f"{slot}.{name}": value
            for slot, known in {"transform": about, "values": notes}.items()
            for name, value in known.items()
        },
        "bits_per_entry": {slot: 8 * size / entries for slot, size in {**sizes, "total": len(frame)}.items()},
        "bound_bits_per_entry": bound_bits(index_ctx.numel, parsed.count) / entries,
    }


def bound_bits(numel: int, count: int) -> float:
    """log2 C(numel, count): the bits that a set of `count` indices costs at least if all sets are equally likely.

    >>> round(bound_bits(1_000_000, 10_000) / 10_000, 2)
    8.08
    """
    logs = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return max(0.0, logs / math.log(2))


def _open(frame: wire.Data, max_numel: int | None, max_entries: int | None) -> wire.Frame:
    parsed = wire.unpack(frame, max_numel)
    _allow(parsed.count, parsed.width, _most(frame, max_entries))
    return parsed


def _most(data: wire.Data, max_entries: int | None) -> int:
    """The caller's cap. Without one, memory is at most a multiple of what the sender took the trouble to send."""
    return max(MAX_ENTRIES, ENTRIES_PER_BYTE * memoryview(data).nbytes) if max_entries is None else max_entries


def _allow(count: int, width: int, max_entries: int) -> None:
    if count * width > max_entries:
        what = f"{count} entries" + (f" of {width} numbers" if width > 1 else "")
        raise LimitExceeded(f"{what}, more than max_entries={max_entries} allows", "max_entries")


def _decode_ordered(parsed: wire.Frame, s: Scheme, ctx: Context) -> Sparse:
    """Entries back in ascending order. Indices first: values without a map may be few bytes for any count."""
    indices = s.indices.decode(memoryview(parsed.indices), ctx)
    values = s.values.decode(memoryview(parsed.values), ctx)
    order = np.argsort(indices, kind="stable")
    return _sparse(parsed, s, indices[order], values[order])


def _section(read: Callable[[], Result]) -> Result:
    """Whatever a codec says against its section, or dies of, comes out as one kind of error."""
    try:
        return read()
    except FrameError:
        raise
    except Exception as error:
        raise SectionError(str(error) or type(error).__name__) from error
