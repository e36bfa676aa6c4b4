"""Dense-sized work: selection and accumulation."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from .base import Array, index_dtype


def magnitude_bits(x: Array) -> Array:
    """|x| as an unsigned integer that orders like the magnitude."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return x.view(unsigned) & unsigned.type(2 ** (8 * x.dtype.itemsize - 1) - 1)


def topk(x: Array, k: int, edge: int = 0, threads: int = 1) -> tuple[Array, Array]:
    """The k entries of largest magnitude, ties to the lowest index: (indices ascending, values).

    With an edge, those of them whose `magnitude_bits` reach it.
    """
    _check_edge(edge, x.dtype)
    if not 0 <= k <= x.size:
        raise ValueError(f"k must lie in 0…{x.size}, not {k}")
    if k == 0:
        return np.empty(0, index_dtype(x.size)), np.empty(0, x.dtype)
    bits = magnitude_bits(x)
    least = np.partition(bits, x.size - k)[x.size - k]
    chosen = bits > least
    ties = np.flatnonzero(bits == least)[: k - np.count_nonzero(chosen)]
    chosen[ties] = True
    chosen &= bits >= bits.dtype.type(edge)
    return _gather(x, np.flatnonzero(chosen))


def topk_sum(
    residual: Array, x: Array, k: int, decay: float = 1.0, gain: float = 1.0, edge: int = 0,
    remembered: Array | None = None, threads: int = 1,
) -> tuple[Array, Array]:  # fmt: skip
    """`topk` of the compensated gradient decay · residual + gain · x, which is not written out.

    Every product and sum is rounded by itself. `remembered`, one int64, is given the k-th magnitude's bits where no
    edge is: the next call may begin with them, and what they are changes no result.
    """
    indices, values = topk(_compensated(residual, x, decay, gain), k, edge)
    if remembered is not None:
        if remembered.size != 1:
            raise ValueError("one edge is remembered")
        if not edge:
            remembered[0] = magnitude_bits(values).min() if values.size else 0
    return indices, values


def _compensated(residual: Array, x: Array, decay: float, gain: float) -> Array:
    if residual.size != x.size:
        raise ValueError("the residual and x differ in size")
    with np.errstate(all="ignore"):
        return np.asarray(x.dtype.type(decay) * residual + x.dtype.type(gain) * x)


def one_sign(x: Array, k: int, threads: int = 1) -> tuple[Array, Array]:
    """The k largest entries of the sign whose k largest have the larger sum: (indices ascending, values).

    Ties go to the lowest index, equal sums to the positive ones. Of a sign that has fewer than k entries all are taken;
    zeros have none. Sums are of |value| / the largest of both signs, in float64 and by ascending index. NaN and inf are
    larger than any number: a sign that has one comes before one that has not, the positive one before both.
    """
    sides = []
    for negative in (False, True):
        indices, values = topk(np.where(np.signbit(x) == negative, x, x.dtype.type(0)), k)
        nonzero = magnitude_bits(values) > 0
        sides.append((indices[nonzero], values[nonzero]))
    tops = [magnitude_bits(values).max(initial=0) for _, values in sides]
    nonfinite = [top >= magnitude_edge(np.inf, x.dtype) for top in tops]
    if any(nonfinite):
        return sides[0 if nonfinite[0] else 1]
    top = np.array([max(tops)]).view(x.dtype)
    first, second = (_share(values, top) for _, values in sides)
    return sides[0 if first >= second else 1]


def _share(values: Array, top: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.add.accumulate(np.abs(values).astype(np.float64) / top)[-1]) if values.size else 0.0


def one_sign_sum(
    residual: Array, x: Array, k: int, decay: float = 1.0, gain: float = 1.0, threads: int = 1
) -> tuple[Array, Array]:
    """`one_sign` of the compensated gradient, as `topk_sum`."""
    return one_sign(_compensated(residual, x, decay, gain), k)


def chunk_topk(x: Array, k: int, chunk: int, threads: int = 1) -> tuple[Array, Array]:
    """`topk` of every `chunk` elements; of a last one of n < chunk, the ⌈k · n / chunk⌉ largest."""
    if not 1 <= k <= chunk <= 2**30:
        raise ValueError("a chunk has 1 … 2**30 elements, of which at least 1 is taken")
    places = [np.empty(0, np.int64)]
    for start in range(0, x.size, chunk):
        part = x[start : start + chunk]
        places.append(start + topk(part, -(-k * part.size // chunk))[0].astype(np.int64))
    return _gather(x, np.concatenate(places))


def chunk_topk_sum(
    residual: Array, x: Array, k: int, chunk: int, decay: float = 1.0, gain: float = 1.0, threads: int = 1
) -> tuple[Array, Array]:
    """`chunk_topk` of the compensated gradient, as `topk_sum`."""
    return chunk_topk(_compensated(residual, x, decay, gain), k, chunk)


def compensate(
    residual: Array, x: Array, indices: Array, sent: Array, decay: float = 1.0, gain: float = 1.0,
    velocity: Array | None = None, momentum: float = 0.0, lead: float = 0.0, mask: bool = False, threads: int = 1,
) -> None:  # fmt: skip
    """What is kept of a step: residual ← decay · residual + gain · x − what was sent, at ascending indices; in place.

    With a velocity, velocity ← momentum · velocity + x, set to zero where something was sent if it is masked, and
    residual ← residual + lead · velocity.
    """
    if residual.size != x.size or (velocity is not None and velocity.size != x.size):
        raise ValueError("the residual, the velocity and x differ in size")
    kind = x.dtype.type
    with np.errstate(all="ignore"):
        total = kind(decay) * residual + kind(gain) * x
        scatter_add(total, indices, sent, -1.0)
        if velocity is not None:
            velocity[:] = kind(momentum) * velocity + x
            if mask:
                velocity[indices] = 0
            total += kind(lead) * velocity
    residual[:] = total


def magnitude_edge(low: float, dtype: np.dtype[np.floating]) -> int:
    """`magnitude_bits` of a number ≥ 0 as `dtype` has it; above 0 for all above 0.

    Whether the processor takes subnormal numbers for zero (torch.set_flush_denormal) changes nothing.
    """
    bits: int = struct.unpack("<Q", struct.pack("<d", low))[0]
    if bits == 1 << 63:  # −0.0
        return 0
    if bits > 0x7FF << 52:
        raise ValueError(f"a threshold is a number ≥ 0, not {low}")
    if dtype.itemsize == 8 or bits == 0:
        return bits
    if low < 2.0**-126:
        return max(1, round(low * 2.0**149))
    with np.errstate(over="ignore"):
        return int(magnitude_bits(np.array([low]).astype(dtype))[0])


def threshold(x: Array, edge: int, threads: int = 1) -> tuple[Array, Array]:
    """All entries whose `magnitude_bits` reach the edge, NaN included: (indices ascending, values).

    A number as an edge is `magnitude_edge`: floats would lose those that the processor takes for zero.
    """
    _check_edge(edge, x.dtype)
    bits = magnitude_bits(x)
    return _gather(x, np.flatnonzero(bits >= bits.dtype.type(edge)))


def _check_edge(edge: int, dtype: np.dtype[np.floating]) -> None:
    if not 0 <= edge <= magnitude_edge(np.inf, dtype):
        raise ValueError("an edge is the bits of no magnitude")


def all_finite(x: Array, threads: int = 1) -> bool:
    """Whether no entry is NaN or infinite."""
    return bool(np.isfinite(x).all())


def scatter_add(out: Array, indices: Array, values: Array, scale: float = 1.0) -> None:
    """out[indices] += scale · values; the indices ascend and lie within out."""
    if indices.size != values.size or (indices.size and not 0 <= indices[0] <= indices[-1] < out.size):
        raise ValueError("the entries do not fit the output")
    if not (indices[1:] > indices[:-1]).all():
        raise ValueError("the indices do not ascend")
    with np.errstate(all="ignore"):
        out[indices] += out.dtype.type(scale) * values


def accumulate(out: Array, parts: Sequence[tuple[Array, Array]], scale: float, threads: int = 1) -> None:
    """out = Σ over the parts, in their order, of scale × values at indices; everything else is zero."""
    for indices, values in parts:
        if indices.size != values.size or (indices.size and not 0 <= indices[0] <= indices[-1] < out.size):
            raise ValueError("a part does not fit the output")
        if not (indices[1:] > indices[:-1]).all():
            raise ValueError("a part's indices do not ascend")
    out.fill(0)
    for indices, values in parts:
        out[indices] += values * out.dtype.type(scale)


def _gather(x: Array, positions: Array) -> tuple[Array, Array]:
    return positions.astype(index_dtype(x.size)), x[positions]
