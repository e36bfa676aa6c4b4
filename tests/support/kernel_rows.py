"""One row per kernel: a strategy for its arguments; for readers, how encoders make them, so they can be damaged."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from kernel_dense import (
    Args,
    accumulate_args,
    chunk_topk_args,
    compensate_args,
    compensate_mean_args,
    dense,
    half_spectra_args,
    row_norms_args,
    scatter_args,
    seeds,
    threshold_args,
    topk_args,
    topk_sum_args,
    without_edge,
)
from kernel_indices import (
    bloom_args,
    bloom_conflicts_args,
    bloom_positives_args,
    gap_lists,
    huffman_parts,
    integers,
    keys,
    pack_bits_args,
    pack_uneven_args,
    permute_args,
    rice_args,
    rice_decode_args,
    sizes,
    small_supports,
    tallies,
    unpack_bits_args,
    walks,
)
from kernel_values import (
    alphabet_args,
    dequantize_args,
    fit_args,
    grid_args,
    knot_args,
    lookup_args,
    poly_args,
    poly_eval_args,
    quantize_args,
    rans_args,
    reconstruct_args,
    symbols_args,
    symbols_decode_args,
    table_args,
    table_decode_args,
)
from strategies import supports

from sparsewire.kernels import reference


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
