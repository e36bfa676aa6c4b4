"""Arguments of the kernels of index codecs: gaps, bits, Huffman's and Rice's codes, Bloom filters."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from kernel_dense import EDGES, Args, seeds
from strategies import supports

from sparsewire.kernels import reference

sizes = st.sampled_from(EDGES)
keys = st.integers(0, 2**64 - 1)
widths = st.integers(0, 64)


@st.composite
def integers(draw: st.DrawFn, most_bits: int | None = None) -> np.ndarray:
    """uint32 or uint64 values of mixed sizes."""
    dtype = np.dtype(draw(st.sampled_from([np.uint32, np.uint64])))
    rng = np.random.default_rng(draw(seeds))
    top = min(most_bits or 64, 8 * dtype.itemsize)
    size = draw(sizes)
    values = rng.integers(0, 2**64 - 1, size, dtype=np.uint64, endpoint=True)
    bits = (
        rng.integers(0, top, size, endpoint=True) if draw(st.booleans()) else np.full(size, draw(st.integers(0, top)))
    )
    shift = np.uint64(64) - np.clip(bits, 1, 64).astype(np.uint64)
    return np.where(bits == 0, np.uint64(0), values >> shift).astype(dtype)


@st.composite
def gap_lists(draw: st.DrawFn) -> np.ndarray:
    """Gaps as real supports have them: Rice and Huffman cost time and space by their size."""
    scale, seed, size = draw(st.sampled_from([0, 1, 30, 5000])), draw(seeds), draw(sizes)
    dtype = draw(st.sampled_from([np.uint32, np.uint64]))
    values = np.random.default_rng(seed).geometric(1 / (scale + 1), size) - 1
    if size and draw(st.integers(0, 4)) == 0:
        values[-1] = 2**31 - 1
    return values.astype(dtype)


@st.composite
def pack_bits_args(draw: st.DrawFn) -> Args:
    values = draw(integers())
    return values, draw(st.integers(0, 8 * values.dtype.itemsize))


@st.composite
def unpack_bits_args(draw: st.DrawFn) -> Args:
    width, count = draw(widths), draw(sizes)
    data = np.random.default_rng(draw(seeds)).integers(0, 256, (count * width + 7) // 8, dtype=np.uint8)
    return data, width, count


@st.composite
def pack_uneven_args(draw: st.DrawFn) -> Args:
    values = draw(integers())
    top = 8 * values.dtype.itemsize
    return values, np.random.default_rng(draw(seeds)).integers(0, top + 1, values.size, dtype=np.uint8)


small_supports = supports(most=2**16)


def huffman_parts(gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    symbols = np.minimum(gaps, 40).astype(np.uint8)
    return symbols, reference.huffman_lengths(np.bincount(symbols, minlength=1))


def tallies(seed: int, size: int, bits: int) -> np.ndarray:
    """Counts of very different sizes, some of them 0, many the same."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 ** rng.integers(0, bits, size, endpoint=True))


@st.composite
def permute_args(draw: st.DrawFn) -> Args:
    numel = draw(st.one_of(st.integers(1, 300), st.sampled_from([2**31, 2**32 + 1, 2**62])))
    ids = np.random.default_rng(draw(seeds)).integers(0, numel, min(draw(sizes), numel)).astype(np.uint64)
    return ids, numel, draw(keys)


@st.composite
def bloom_args(draw: st.DrawFn) -> Args:
    """Ids and a filter's measures: classic (no words) or blocked."""
    ids, numel = draw(supports(most=5003).filter(lambda pair: pair[1] > 0))
    words = draw(st.integers(0, 8))
    bits = draw(st.integers(1, 3000)) if not words else 64 * words * draw(st.integers(1, min(9, numel)))
    return ids, numel, bits, draw(st.integers(1, 32)), words, draw(st.integers(0, 2**63))


def bloom_positives_args(args: Args) -> Args:
    return reference.bloom_build(*args), *args[1:], args[1]


@st.composite
def bloom_conflicts_args(draw: st.DrawFn) -> Args:
    args = draw(bloom_args())
    positives = reference.bloom_positives(*bloom_positives_args(args))
    return positives, *args[1:], draw(st.integers(0, positives.size))


def rice_decode_args(args: Args) -> Args:
    gaps, block = args
    return *reference.rice_encode(gaps, block), gaps.size, block, gaps.dtype == np.uint64


def walks(seed: int, size: int) -> np.ndarray:
    """Numbers below 64 that mostly stay near each other."""
    rng = np.random.default_rng(seed)
    steps = np.cumsum(rng.integers(-1, 2, size)) + rng.integers(0, 64) * (rng.random(size) < 0.1)
    return np.clip(steps + 20, 0, 63).astype(np.uint8)


rice_args = st.tuples(gap_lists(), st.sampled_from([8, 64, 1024]))
