"""What the tests draw from: every codec in the registry, and tensors as gradients come, pleasant or not.

A new codec joins the laws by being registered; a chain or a setting worth its own row is added to `CHAINS`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import toys  # noqa: F401  (registers them)
from hypothesis import strategies as st

from sparsewire import Sparse, kernels, list_codecs
from sparsewire.codecs.contract import Codec

CHAINS = [
    "qsgd(bits=2, bucket=3)",
    "qsgd(7)+deflate",
    "qsgd(12)+zstd",
    "half+zstd",
    "deflate+zstd",
    "fit_poly(degree=2, segments=3, rank_bits=3)+deflate",
    "fit_dexp(rank_bits=2)",
    "mean+deflate",
    "centroid(bits=1)",
    "centroid(bits=8)+zstd",
    "range_float(bits=2, mantissa=0)",
    "range_float(bits=auto, error=0.1)+deflate",
    "range_float(bits=16, mantissa=7)+zstd",
]
BLOOMS = [f"bloom(0.2, {policy}, {layout})" for policy in ("naive", "p1", "p2") for layout in ("classic", "blocked")]
# Codecs that ask a filter for every element are tested on small tensors only.
MOST_NUMEL = {"bloom": 2**16}
MEMORIES = [name for name in list_codecs()["memory"] if name != "none"] + ["residual(decay=0.9)"]
TRANSFORMS = [*list_codecs()["transform"], "rows(width=3)", "haar(pairs=true)", "fft(chunk=30)",
              "dct(block=4, two_dimensional=true)"]  # fmt: skip
EXCHANGES = list_codecs()["exchange"]
INDEX_CODECS = [*BLOOMS, *list_codecs()["indices"], "rice(block=8)"]
VALUE_CODECS = [*list_codecs()["values"], *CHAINS]
PAIRS = [
    *itertools.product(list_codecs()["indices"], list_codecs()["values"]),
    *itertools.product(BLOOMS, ["raw"]),
    *zip(itertools.cycle(INDEX_CODECS[::-1]), CHAINS, strict=False),
]
SELECTS = [
    "nonzero",
    "topk(1%)",
    "topk(50%)",
    "topk(100%)",
    "topk(k=0)",
    "topk(k=1)",
    "randomk(30%)",
    "randomk(k=3, shared=false)",
    "one_sign(10%)",
    "one_sign(k=3)",
    "chunk_topk",
    "chunk_topk(k=3, chunk=10)",
    "error_budget(bound=0.3)",
    "error_budget(bound=0)",
    "threshold(value=0.5)",
    "threshold(ratio=10%)",
]
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SHAPES = [(), (0,), (1,), (2, 0, 3), (7,), (8, 8), (1, 1, 2, 1, 3, 1, 2, 1), (65,), (4, 64), (1025,)]
KINDS = ["normal", "zeros", "mostly_zero", "constant", "repeated", "clustered", "magnitudes", "denormal", "sorted"]
BACKENDS = ["reference", *(["native"] if kernels.native() else [])]


@contextlib.contextmanager
def using(backend: str) -> Iterator[None]:
    """The kernels of one backend, then again those of before."""
    before = kernels.backend()
    kernels.use(backend)
    try:
        yield
    finally:
        kernels.use(before)


def make(kind: str, size: int, dtype: str, seed: int = 0) -> np.ndarray:
    """A flat array of one kind: deterministic, so that golden frames and child processes can use it too."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=size)
    tiny = float(ml_dtypes.finfo(DTYPES[dtype]).smallest_subnormal)
    arrays = {
        "normal": normal,
        "zeros": np.where(rng.random(size) < 0.5, 0.0, -0.0),
        "mostly_zero": np.where(rng.random(size) < 0.05, normal, 0.0),
        "constant": np.full(size, -0.75),
        "repeated": rng.integers(-2, 3, size).astype(float),
        "clustered": np.where((np.arange(size) // 16) % 5 == 1, normal, 0.0),
        "magnitudes": normal * 2.0 ** rng.integers(-12, 13, size),
        "denormal": rng.integers(-9, 10, size) * tiny,
        "sorted": np.sort(normal),
    }
    return arrays[kind].astype(DTYPES[dtype])


def explicit(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Few numbers of hypothesis' own choice, from the whole range that leaves room for a sum of two."""
    width = {"float64": 64, "float32": 32}.get(dtype, 16)
    limit = float(ml_dtypes.finfo(DTYPES[dtype]).max) / 4 if width != 16 else 2.0**13
    number = st.floats(-limit, limit, width=width)
    return st.lists(number, max_size=12).map(lambda numbers: np.array(numbers).astype(DTYPES[dtype]))


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[str, ...] = tuple(DTYPES)) -> np.ndarray:
    """A finite tensor of any dtype and shape."""
    dtype = draw(st.sampled_from(dtypes))
    if draw(st.integers(0, 3)) == 0:
        return draw(explicit(dtype))
    shape = draw(st.sampled_from(SHAPES))
    return make(draw(st.sampled_from(KINDS)), math.prod(shape), dtype, draw(st.integers(0, 99))).reshape(shape)


def selects() -> st.SearchStrategy[str]:
    return st.sampled_from(SELECTS)


@st.composite
def supports(draw: st.DrawFn, most: int = 2**62) -> tuple[np.ndarray, int]:
    """(ascending unique indices, numel): spread, clustered, at the ends, full; up to 64-bit sizes."""
    numel = draw(st.sampled_from([0, 1, 2, 9, 64, 1000, 2**16, 2**31 - 1, 2**31, 2**31 + 1, 2**40, 2**62]))
    numel = min(numel, most)
    seed, kind = draw(st.integers(0, 99)), draw(st.sampled_from(["some", "none", "run", "ends", "full"]))
    indices = _support(kind, numel, np.random.default_rng(seed))
    return indices.astype(kernels.index_dtype(numel)), numel


def _support(kind: str, numel: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "none" or numel == 0:
        return np.empty(0, np.int64)
    if kind == "some":
        return np.unique(rng.integers(0, numel, rng.integers(1, 300)))
    if kind == "ends":
        return np.unique([0, numel // 2, numel - 1])
    start = 0 if kind == "full" else int(rng.integers(0, numel))
    return np.arange(start, min(numel, start + 200), dtype=np.int64)


def sparses() -> st.SearchStrategy[Sparse]:
    """Sparse tensors, far larger than any dense one could be."""

    def build(support: tuple[np.ndarray, int], dtype: str, seed: int) -> Sparse:
        indices, numel = support
        return Sparse(indices, make("magnitudes", indices.size, dtype, seed), (numel,), dtype)

    return st.builds(build, supports(), st.sampled_from(list(DTYPES)), st.integers(0, 99))


def fits(codec: Codec, numel: int) -> bool:
    return numel <= MOST_NUMEL.get(codec.id, numel)


def work(x: np.ndarray) -> np.ndarray:
    """The tensor flat, in the precision that arithmetic is done in."""
    return x.reshape(-1).astype(np.float64 if x.dtype == np.float64 else np.float32)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
