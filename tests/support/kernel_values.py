"""Arguments of the kernels of value codecs: quantizers, curves, bins and their symbols, grids of floats."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from kernel_dense import EDGES, Args, dense, dense_sizes, seeds
from kernel_indices import keys
from strategies import KINDS, make

from sparsewire import kernels
from sparsewire.codecs.values.range_float import FloatGrid, Range
from sparsewire.kernels import reference
from sparsewire.kernels.reference.bins import ROWS, assign_bins


@st.composite
def quantize_args(draw: st.DrawFn) -> Args:
    return draw(dense()), draw(st.integers(2, 16)), draw(st.sampled_from([1, 3, 8, 64, 512, 2**24])), draw(keys)


def dequantize_args(args: Args) -> Args:
    return *reference.quantize(*args), args[1], args[2]


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
