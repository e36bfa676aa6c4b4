"""Arguments for kernels on dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from strategies import KINDS, make

from sparsewire.kernels import reference

Args = tuple[Any, ...]
EDGES = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 511, 512, 513, 1023, 1024, 1025]
dense_sizes = st.sampled_from([*EDGES, 2049, 4095, 4096, 4097, 5003, 9001])
seeds = st.integers(0, 999)


@st.composite
def dense(draw: st.DrawFn, dtype: str | None = None, size: int | None = None) -> np.ndarray:
    """A float array, now and then with non-finite entries."""
    dtype = dtype or draw(st.sampled_from(["float32", "float64"]))
    size = draw(dense_sizes) if size is None else size
    x = make(draw(st.sampled_from(KINDS)), size, dtype, draw(seeds))
    if size and draw(st.integers(0, 3)) == 0:
        places = np.random.default_rng(draw(seeds)).integers(0, size, 5)
        x[places] = np.array([np.nan, np.inf, -np.inf, np.inf, -0.0], dtype)
    return x


def threshold_args(args: Args) -> Args:
    return args[0], reference.magnitude_edge(args[1], args[0].dtype)


def row_norms_args(width: int) -> st.SearchStrategy[Args]:
    return st.builds(lambda x: (np.empty(x.size // width, x.dtype), x[: x.size // width * width], width), dense())


@st.composite
def half_spectra_args(draw: st.DrawFn) -> Args:
    """Rows that fill blocks, begin and end in them, or have no entry."""
    rows, pairs = draw(
        st.sampled_from([(1, 0), (1, 1), (3, 1), (1, 2), (2, 255), (2, 256), (3, 257), (1, 1000), (40, 16)])
    )
    spectra = draw(dense(size=rows * (2 * pairs + 2)))
    out, norms = (np.empty(rows * pairs * numbers, spectra.dtype) for numbers in (2, 1))
    return out, norms, spectra, rows, draw(st.booleans())


@st.composite
def topk_args(draw: st.DrawFn) -> Args:
    """(x, k), or with an edge."""
    x = draw(dense())
    k = draw(st.one_of(st.integers(0, x.size), st.sampled_from([0, min(1, x.size), x.size])))
    return (x, k, draw(edges(x))) if draw(st.booleans()) else (x, k)


def edges(x: np.ndarray) -> st.SearchStrategy[int]:
    """Edges of all kinds, those of the array's own magnitudes as well."""
    own = st.sampled_from(np.abs(x).tolist() or [0.0]).map(lambda low: np.fmin(low, np.inf))
    lows = st.sampled_from([0.0, 1e-60, 1e-45, 0.5, 1.0, 1e30, np.inf]) | own
    return lows.map(lambda low: reference.magnitude_edge(float(low), x.dtype))


@st.composite
def topk_sum_args(draw: st.DrawFn) -> Args:
    """(residual, x, k), now and then with factors of residual and x, or an edge besides."""
    x, k, *edge = draw(topk_args())
    factors = draw(st.sampled_from([(), (1.0, 1.0), (0.95, 1.0), (1.0, 1.9), (0.5, 1.5)]))
    return draw(dense(x.dtype.name, x.size)), x, k, *factors, *(edge if factors else ())


def without_edge(args: Args) -> Args:
    """The arguments of a selection that knows no edge."""
    return args[:2] if isinstance(args[1], int) else args[:5]


@st.composite
def compensate_args(draw: st.DrawFn) -> Args:
    """(residual, x, what was sent), now and then with factors, and with a velocity."""
    residual, x, _, *factors = draw(topk_sum_args().map(without_edge))
    kind, seed = x.dtype.name, draw(seeds)
    rng = np.random.default_rng(seed)
    indices = np.flatnonzero(rng.random(x.size) < rng.choice([0, 0.01, 0.5, 1]))
    indices = indices.astype(draw(st.sampled_from([np.int32, np.int64])))
    sent = residual, x, indices, make(draw(st.sampled_from(KINDS)), indices.size, kind, seed)
    if not factors or draw(st.booleans()):
        return *sent, *factors
    return *sent, *factors, draw(dense(kind, x.size)), 0.9, draw(st.sampled_from([0.9, 0.81])), draw(st.booleans())


@st.composite
def compensate_mean_args(draw: st.DrawFn) -> Args:
    """(residual, x, what was sent, the ranks' parts of the mean, its factor)."""
    x, parts, scale = draw(accumulate_args())
    rng = np.random.default_rng(draw(seeds))
    indices = np.flatnonzero(rng.random(x.size) < rng.choice([0, 0.01, 0.5, 1]))
    indices = indices.astype(draw(st.sampled_from([np.int32, np.int64])))
    sent = make(draw(st.sampled_from(KINDS)), indices.size, x.dtype.name, draw(seeds))
    return draw(dense(x.dtype.name, x.size)), x, indices, sent, parts, scale


@st.composite
def chunk_topk_args(draw: st.DrawFn, given: st.SearchStrategy[Args]) -> Args:
    """As `topk_args` or `topk_sum_args`, with k of a chunk."""
    args, chunk = draw(given), draw(st.sampled_from([1, 2, 7, 64, 100, 1024, 1500, 4096, 2**30]))
    place = next(i for i, arg in enumerate(args) if isinstance(arg, int))
    return *args[:place], draw(st.integers(1, min(chunk, 70))), chunk, *args[place + 1 :]


@st.composite
def accumulate_args(draw: st.DrawFn) -> Args:
    out = draw(dense())
    parts = []
    for seed in draw(st.lists(seeds, max_size=4)):
        rng = np.random.default_rng(seed)
        indices = np.flatnonzero(rng.random(out.size) < rng.random()).astype(np.int32)
        parts.append((indices, make("magnitudes", indices.size, out.dtype.name, seed)))
    return out, parts, draw(st.sampled_from([1.0, 0.5, 1 / 3]))


@st.composite
def scatter_args(draw: st.DrawFn) -> Args:
    out, parts, _ = draw(accumulate_args())
    scale = draw(st.sampled_from([1.0, -1.0, 0.3]))
    return out, *(parts[0] if parts else (np.empty(0, np.int32), np.empty(0, out.dtype))), scale
