"""Native kernels on arrays that are large enough to be sampled, and on a system without threads to give."""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import make
from test_kernels import ISAS, _restore_isa, native, needs_native, plain  # noqa: F401

from sparsewire.kernels import reference

LARGE = ["normal", "zeros", "mostly_zero", "constant", "repeated", "clustered", "magnitudes", "sorted", "one_cluster"]


@functools.cache
def large(kind: str, dtype: str) -> np.ndarray:
    size = 1_000_003 if kind == "normal" else 262_147
    if kind != "one_cluster":
        return make(kind, size, dtype, 5)
    x = make("normal", size, dtype, 5) * np.dtype(dtype).type(1e-6)
    x[1000:4000] = 7.0
    return x


def spoiled(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[::50_000], x[7::90_000] = np.nan, -np.inf
    return x


@functools.cache
def expected_topk(kind: str, dtype: str, k: int, spoil: bool) -> Any:
    x = spoiled(large(kind, dtype)) if spoil else large(kind, dtype)
    return plain(reference.topk(x, k))


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("spoil", [False, True], ids=["finite", "non_finite"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", LARGE)
def test_topk_is_exact_where_it_samples(kind: str, dtype: str, spoil: bool, isa: str) -> None:
    native.set_isa(isa)
    x = spoiled(large(kind, dtype)) if spoil else large(kind, dtype)
    for k in (1, x.size // 1000, x.size // 100, x.size // 2):
        for threads in (1, 2):
            assert plain(native.topk(x, k, threads=threads)) == expected_topk(kind, dtype, k, spoil)


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("spoil", [False, True], ids=["finite", "non_finite"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [*LARGE, "one_sided"])
def test_one_sign_is_exact_where_it_samples(kind: str, dtype: str, spoil: bool, isa: str) -> None:
    native.set_isa(isa)
    x = abs(large("normal", dtype)) if kind == "one_sided" else large(kind, dtype)
    x = spoiled(x) if spoil else x
    for k in (1, x.size // 1000, x.size // 100, x.size // 2):
        expected = plain(reference.one_sign(x, k))
        assert plain(native.one_sign(x, k, 1)) == plain(native.one_sign(x, k, 2)) == expected
        assert plain(native.one_sign(-x, k)) == plain(reference.one_sign(-x, k))
        assert plain(native.one_sign_sum(x, x, k, 0.5)) == plain(reference.one_sign_sum(x, x, k, 0.5))


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("spoil", [False, True], ids=["finite", "non_finite"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", LARGE)
def test_chunks_do_not_depend_on_those_before(kind: str, dtype: str, spoil: bool, isa: str) -> None:
    native.set_isa(isa)
    x = spoiled(large(kind, dtype)) if spoil else large(kind, dtype)
    for k, chunk in ((64, 4096), (1, 100), (900, 1000)):
        expected = plain(reference.chunk_topk(x, k, chunk))
        assert plain(native.chunk_topk(x, k, chunk, 1)) == plain(native.chunk_topk(x, k, chunk, 3)) == expected


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", LARGE)
def test_topk_of_a_sum_is_an_addition_and_a_topk(kind: str, dtype: str, isa: str) -> None:
    native.set_isa(isa)
    x, start = large(kind, dtype), large("normal", dtype)[: large(kind, dtype).size]
    for k in (1, x.size // 100):
        expected = reference.topk(start + x, k)
        for threads in (1, 2):
            residual = start.copy()
            assert plain(native.topk_sum(residual, x, k, threads=threads)) == plain(expected)
            assert plain(residual) == plain(start)


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", LARGE)
def test_an_edge_leaves_out_what_is_below_it(kind: str, dtype: str, isa: str) -> None:
    """Where fewer than k reach it, some more, and far more."""
    native.set_isa(isa)
    x, start = spoiled(large(kind, dtype)), large("normal", dtype)[: large(kind, dtype).size]
    bits = np.sort(reference.magnitude_bits(start + x))
    infinity = reference.magnitude_edge(np.inf, x.dtype)
    k = x.size // 100
    for rank in (k // 2, k + k // 2, 20 * k):
        edge = min(int(bits[-rank]), infinity)
        expected = plain(reference.topk_sum(start, x, k, edge=edge))
        assert plain(native.topk(start + x, k, edge)) == expected
        for threads in (1, 2):
            assert plain(native.topk_sum(start, x, k, edge=edge, threads=threads)) == expected


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", LARGE)
def test_topk_of_a_scaled_sum_writes_nothing(kind: str, isa: str) -> None:
    native.set_isa(isa)
    x, start = large(kind, "float32"), large("normal", "float32")[: large(kind, "float32").size]
    residual = start.copy()
    for k in (1, x.size // 100):
        assert plain(native.topk_sum(residual, x, k, 0.5, 1.9)) == plain(reference.topk_sum(start, x, k, 0.5, 1.9))
    assert plain(residual) == plain(start)


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mask", [None, False, True])
def test_what_is_kept_does_not_depend_on_threads(mask: bool | None, dtype: str, isa: str) -> None:
    """Entries that were sent lie on both sides of where threads meet."""
    native.set_isa(isa)
    x, start = large("magnitudes", dtype), large("normal", dtype)[: large("magnitudes", dtype).size]
    sent = reference.topk(x, x.size // 10)
    found = []
    for module, threads in ((reference, 1), (native, 1), (native, 2), (native, 3)):
        residual, velocity = start.copy(), None if mask is None else start[::-1].copy()
        module.compensate(residual, x, *sent, 0.5, 1.9, velocity, 0.9, 0.81, bool(mask), threads=threads)
        found.append(plain([residual] if velocity is None else [residual, velocity]))
    assert found == found[:1] * 4


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accumulate_adds_large_parts_in_their_order(dtype: str, isa: str) -> None:
    native.set_isa(isa)
    dense = [large(kind, dtype)[:262_147] for kind in ("magnitudes", "clustered", "normal")]
    parts = [reference.topk(x, x.size // share) for x, share in zip(dense, (100, 10, 3), strict=True)]
    expected, out = np.empty(262_147, dtype), np.empty(262_147, dtype)
    reference.accumulate(expected, parts, 1 / 3)
    for threads in (1, 2):
        native.accumulate(out, parts, 1 / 3, threads)
        assert plain(out) == plain(expected)


WITHOUT_THREADS = """
import numpy as np, sys, threading
sys.path.insert(0, sys.argv[1])
import corpus
from sparsewire import kernels
x = np.random.default_rng(0).standard_normal(2_000_000).astype(np.float32)
one = [kernels.topk(x, 20_000), kernels.all_finite(x)]
corpus.limit_memory(256)  # far less than a thread's stack
many = [kernels.topk(x, 20_000, threads=8), kernels.all_finite(x, threads=8)]
assert all(map(np.array_equal, one[0], many[0])) and one[1] is many[1] is True
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print("done without threads")
"""


@needs_native
def test_a_system_without_threads_to_give_is_slower_and_no_more() -> None:
    stack = 2**30, resource.getrlimit(resource.RLIMIT_STACK)[1]
    command = [sys.executable, "-c", WITHOUT_THREADS, str(Path(__file__).parent)]
    huge_stacks = functools.partial(resource.setrlimit, resource.RLIMIT_STACK, stack)
    run = subprocess.run(command, capture_output=True, text=True, preexec_fn=huge_stacks)
    assert (run.returncode, run.stdout) == (0, "done without threads\n"), run.stderr
