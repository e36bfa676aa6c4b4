"""One row per kernel: a strategy for its arguments; for readers, how encoders make them, so they can be damaged."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from kernel_dense import (
    EDGES,
    Args,
    accumulate_args,
    chunk_topk_args,
    compensate_args,
    compensate_mean_args,
    dense,
    dense_sizes,
    half_spectra_args,
    row_norms_args,
    scatter_args,
    seeds,
    threshold_args,
    topk_args,
    topk_sum_args,
    without_edge,
)
from strategies import KINDS, make, supports

from sparsewire import kernels
from sparsewire.codecs.values.range_float import FloatGrid, Range
from sparsewire.kernels import reference
from sparsewire.kernels.reference.bins import ROWS, assign_bins

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
def quantize_args(draw: st.DrawFn) -> Args:
    return draw(dense()), draw(st.integers(2, 16)), draw(st.sampled_from([1, 3, 8, 64, 512, 2**24])), draw(keys)


def dequantize_args(args: Args) -> Args:
    return *reference.quantize(*args), args[1], args[2]


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


@st.composite
def knot_args(draw: st.DrawFn) -> Args:
    """A sorted curve below 1, how many segments, how many points one has at least."""
    size = draw(st.sampled_from([n for n in EDGES if n]))
    curve = np.sort(np.abs(make(draw(st.sampled_from(KINDS)), size, "float64", draw(seeds))))[::-1].copy()
    return curve / max(1.0, float(curve[0])), draw(st.integers(1, 20)), draw(st.integers(1, 16))


@st.composite
def poly_args(draw: st.DrawFn) -> Args:
    args = draw(knot_args())
    return args[0], reference.chord_knots(*args), draw(st.integers(0, 15))


def poly_eval_args(args: Args) -> Args:
    return reference.poly_fit(*args), args[1]


@st.composite
def fit_args(draw: st.DrawFn) -> Args:
    """Numbers as they come, or near two levels, and a wanted error."""
    x = draw(dense())
    if draw(st.integers(0, 3)) == 0:
        x = np.where(np.signbit(x), x.dtype.type(draw(st.sampled_from([-1.0, 0.5]))), x.dtype.type(1))
    return x, draw(st.sampled_from([0.0001, 0.001, 0.01, 0.05, 0.2, 0.5, 1.0]))


@st.composite
def alphabet_args(draw: st.DrawFn) -> Args:
    """The counts of a quantizer, or a few counts anywhere."""
    found = reference.quantizer_fit(*draw(fit_args()))
    if found and draw(st.booleans()):
        return (found[-1],)
    rng, counts = np.random.default_rng(draw(seeds)), np.zeros(2 * ROWS, np.int64)
    places = rng.integers(0, draw(st.sampled_from([2, 64, counts.size])), draw(st.integers(0, 40)))
    counts[places] = rng.integers(0, draw(st.sampled_from([2, 1000, 2**34])), places.size)
    return (counts,)


@st.composite
def table_args(draw: st.DrawFn) -> Args:
    """Counts that are not all zero, and a resolution."""
    rng, size = np.random.default_rng(draw(seeds)), draw(st.integers(1, 96))
    most, skew = draw(st.sampled_from([2, 400, 30_000, 2**33])), draw(st.integers(1, 30))
    counts = (rng.random(size) ** skew * most).astype(np.int64)
    counts[rng.integers(0, size)] += 1
    return counts, draw(st.integers(0, 3))


def table_decode_args(args: Args) -> Args:
    counts, resolution = args
    here = counts[:2] > 0
    outside = sum(1 << place for place in here.nonzero()[0].tolist())
    return reference.frequency_table_encode(*args)[0], counts.size - here.size + int(here.sum()), outside, resolution


@st.composite
def bin_indices(draw: st.DrawFn) -> np.ndarray:
    start, scale = draw(st.sampled_from([0.0, 1e-40, 0.25, 1.5])), draw(st.sampled_from([1e-30, 1.0, 64.0]))
    return assign_bins(draw(dense()), start, scale)[0]


@st.composite
def symbols_args(draw: st.DrawFn, least_precision: int = 0) -> Args:
    return draw(bin_indices()), draw(st.integers(0, 8)), draw(st.integers(least_precision, 3)), draw(st.integers(-1, 2))


def symbols_decode_args(args: Args) -> Args:
    return *reference.symbols_encode(*args), *args[1:]


@st.composite
def reconstruct_args(draw: st.DrawFn) -> Args:
    dtype, indices = draw(st.sampled_from([np.float32, np.float64])), draw(bin_indices())
    offsets = np.random.default_rng(draw(seeds)).integers(0, 256, draw(st.integers(1, 17)), dtype=np.uint8)
    start, unit, limit = (draw(st.sampled_from(some)) for some in ([0.0, 1e-40, 1.5], [1e-40, 0.01, 1e30], [9.0, 3e38]))
    return np.zeros(indices.size, dtype), indices, start, unit, offsets, limit


@st.composite
def rans_args(draw: st.DrawFn) -> Args:
    """Symbols and frequencies that add up to 4096, now and then all for one."""
    rng, kinds = np.random.default_rng(draw(seeds)), draw(st.sampled_from([1, 2, 3, 40, 256]))
    shares = rng.multinomial(4096 - kinds, rng.dirichlet(np.full(kinds, 0.3))) + 1
    return rng.choice(kinds, draw(dense_sizes), p=shares / 4096).astype(np.uint8), shares.astype(np.uint32)


@st.composite
def grid_args(draw: st.DrawFn) -> Args:
    """Finite values and a grid that was fitted to other values, or has nothing."""
    x, like = draw(dense()), draw(dense())
    x = x[np.isfinite(x)]
    like = like[np.isfinite(like)].astype(x.dtype) if x.size else like
    with np.errstate(over="ignore"):
        extremes = np.array([np.max(like, initial=0), np.min(like, initial=0)], x.dtype)
    extremes[~np.isfinite(extremes)] = 0
    bits = draw(st.integers(2, 16))
    found = Range(*kernels.magnitude_bits(extremes).tolist())
    return x, *FloatGrid.of(found, bits, draw(st.integers(0, bits - 1)), x.dtype)


def lookup_args(seed: int, size: int, most: int) -> Args:
    rng = np.random.default_rng(seed)
    return rng.integers(0, most, size).astype(np.uint32), make("normal", most, ["float32", "float64"][seed % 2], seed)


@st.composite
def sketch_query_args(draw: st.DrawFn) -> Args:
    """(table, ids, numbers per bucket, key), buckets now few and now more than the ids."""
    (ids, _), width = draw(supports()), draw(st.sampled_from([1, 1, 2, 3, 16]))
    buckets = draw(st.sampled_from([1, 2, 5, 64, 1001]))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    return draw(dense(dtype, buckets * width)), ids, width, draw(keys)


@st.composite
def sketch_insert_args(draw: st.DrawFn) -> Args:
    """With numbers that are not finite, but of one kind: which of two NaNs a sum gives is the compiler's affair."""
    table, ids, width, key = draw(sketch_query_args())
    values, only = draw(dense(table.dtype.name, ids.size * width)), draw(st.sampled_from([np.nan, np.inf]))
    table[~np.isfinite(table)] = only
    values[~np.isfinite(values)] = only
    return table, ids, values, width, key


rice_args = st.tuples(gap_lists(), st.sampled_from([8, 64, 1024]))

# What encoders and selections are given.
WRITERS: dict[str, st.SearchStrategy[Args]] = {
    "accumulate": accumulate_args(),
    "all_finite": st.tuples(dense()),
    "alphabet_fit": alphabet_args(),
    "bitmap": small_supports,
    "bloom_build": bloom_args(),
    "bloom_conflicts": bloom_conflicts_args(),
    "chord_knots": knot_args(),
    "chunk_topk": chunk_topk_args(topk_args().map(without_edge)),
    "chunk_topk_sum": chunk_topk_args(topk_sum_args().map(without_edge)),
    "compensate": compensate_args(),
    "compensate_mean": compensate_mean_args(),
    "descending": st.tuples(dense()),
    "elias_fano_encode": supports(),
    "energy": st.tuples(dense()),
    "energy_count": st.tuples(dense(), st.sampled_from([0.0, 1e-9, 0.01, 0.25, 0.9])),
    "frequency_table_encode": table_args(),
    "frequency_table_resolution": table_args().map(lambda args: args[:1]),
    "gap_symbols": st.tuples(gap_lists() | integers()),
    "gaps": st.tuples(supports().map(lambda pair: pair[0])),
    "half_spectra": half_spectra_args(),
    "huffman_encode": gap_lists().map(huffman_parts),
    "huffman_lengths": st.builds(tallies, seeds, st.integers(1, 256), st.integers(1, 53)).map(lambda counts: (counts,)),
    "one_sign": topk_args().map(without_edge),
    "one_sign_sum": topk_sum_args().map(without_edge),
    "pack_bits": pack_bits_args(),
    "pack_deltas": st.tuples(st.builds(walks, seeds, sizes)),
    "pack_uneven": pack_uneven_args(),
    "permute": permute_args(),
    "poly_fit": poly_args(),
    "quantize": quantize_args(),
    "quantizer_fit": fit_args(),
    "random_bits": st.tuples(keys, keys, sizes),
    "range_float_encode": grid_args(),
    "range_float_error": st.tuples(grid_args(), st.sampled_from([1.0, 2.0**60])).map(lambda a: (*a[0], a[1])),
    "rans_encode": rans_args(),
    "reconstruct": reconstruct_args(),
    "rice_encode": rice_args,
    "row_norms": st.sampled_from([1, 2, 3, 8, 64]).flatmap(row_norms_args),
    "run_lengths": st.tuples(supports().map(lambda pair: pair[0])),
    "scatter_add": scatter_args(),
    "sketch_insert": sketch_insert_args(),
    "sketch_load": st.tuples(supports().map(lambda pair: pair[0]), st.sampled_from([1, 2, 77, 5003]), keys),
    "sketch_query": sketch_query_args(),
    "symbols_encode": symbols_args(),
    "threshold": st.tuples(dense(), st.sampled_from([0.0, 1e-60, 1e-45, 0.5, 1.0, 1e30, np.inf])).map(threshold_args),
    "topk": topk_args(),
    "topk_sum": topk_sum_args(),
    "two_level_fit": fit_args(),
}

# What decoders are given: what an encoder wrote.
READERS: dict[str, st.SearchStrategy[Args]] = {
    "bloom_positives": bloom_args().map(bloom_positives_args),
    "dequantize": quantize_args().map(dequantize_args),
    "elias_fano_decode": supports().map(lambda s: (*reference.elias_fano_encode(*s), s[1], s[0].size)),
    "frequency_table_decode": table_args().map(table_decode_args),
    "from_bitmap": small_supports.map(lambda s: (reference.bitmap(*s), s[1], s[0].size)),
    "from_gaps": supports().map(lambda s: (reference.gaps(s[0]), s[1])),
    "from_run_lengths": supports().map(lambda s: (*reference.run_lengths(s[0]), s[1], s[0].size)),
    "huffman_decode": gap_lists().map(huffman_parts).map(lambda p: (reference.huffman_encode(*p), p[1], p[0].size)),
    "lookup": st.builds(lookup_args, seeds, sizes, st.sampled_from([1, 3, 1024])),
    "poly_eval": poly_args().map(poly_eval_args),
    "rans_decode": rans_args().map(lambda a: (reference.rans_encode(*a), a[1], a[0].size)),
    "rice_decode": rice_args.map(rice_decode_args),
    "symbols_decode": symbols_args(least_precision=1).map(symbols_decode_args),
    "unpack_bits": unpack_bits_args(),
    "unpack_deltas": st.builds(walks, seeds, sizes).map(lambda w: (reference.pack_deltas(w), w.size)),
    "unpack_uneven": pack_uneven_args().map(lambda a: (reference.pack_uneven(*a), a[1])),
}
