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
    return st.builds(lambda x: (x[: x.size // width * width], width), dense())


@st.composite
def topk_args(draw: st.DrawFn) -> Args:
    x = draw(dense())
    return x, draw(st.one_of(st.integers(0, x.size), st.sampled_from([0, min(1, x.size), x.size])))


@st.composite
def topk_sum_args(draw: st.DrawFn) -> Args:
    """(residual, x, k), or with decay, velocity, momentum and Nesterov's look-ahead."""
    x, k = draw(topk_args())
    kind, size = x.dtype.name, x.size
    plain = draw(dense(kind, size)), x, k
    if draw(st.booleans()):
        return plain
    velocity = draw(st.none() | st.builds(make, st.sampled_from(KINDS), st.just(size), st.just(kind), seeds))
    return *plain, draw(st.sampled_from([1.0, 0.95])), velocity, 0.9, draw(st.booleans())


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
