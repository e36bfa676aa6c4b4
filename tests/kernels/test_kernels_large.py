"""Native kernels on arrays that are large enough to be sampled, and on a system without threads to give."""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_native import ISAS, _restore_isa, native, needs_native, plain  # noqa: F401
from strategies import make

from sparsewire import kernels
from sparsewire.kernels import reference
from sparsewire.kernels.edges import edge_beside

LARGE = ["normal", "zeros", "mostly_zero", "constant", "repeated", "clustered", "magnitudes", "sorted", "one_cluster"]


@functools.cache
def large(kind: str, dtype: str) -> np.ndarray:
    size = 1_000_003 if kind == "normal" else 262_147
    if kind != "one_cluster":
        return make(kind, size, dtype, 5)
    x = make("normal", size, dtype, 5) * np.dtype(dtype).type(1e-6)
    x[1000:4000] = 7.0
    return x


def nonfinite(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[::50_000], x[7::90_000] = np.nan, -np.inf
    return x


def hold(expected: Any, *calls: Callable[[], Any]) -> None:
    """Each call gives what is expected, with every instruction set of this machine."""
    expected = plain(expected)
    for isa in ISAS:
        native.set_isa(isa)
        for number, call in enumerate(calls):
            assert plain(call()) == expected, (isa, number)


def hold_kernel(name: str, *args: Any, threads: tuple[int, ...] = (1, 2)) -> None:
    """The native kernel gives what the reference does, however many threads it has."""
    calls = [functools.partial(getattr(native, name), *args, threads=count) for count in threads]
    hold(getattr(reference, name)(*args), *calls)


def some(kind: str, dtype: str, spoil: bool) -> np.ndarray:
    x = abs(large("normal", dtype)) if kind == "one_sided" else large(kind, dtype)
    return nonfinite(x) if spoil else x


every_kind = pytest.mark.parametrize("kind", LARGE)
both_widths = pytest.mark.parametrize("dtype", ["float32", "float64"])
finite_or_not = pytest.mark.parametrize("spoil", [False, True], ids=["finite", "non_finite"])


@needs_native
@every_kind
@both_widths
@finite_or_not
def test_topk_is_exact_where_it_samples(kind: str, dtype: str, spoil: bool) -> None:
    x = some(kind, dtype, spoil)
    for k in (1, x.size // 1000, x.size // 100, x.size // 2, 7 * x.size // 10):
        hold_kernel("topk", x, k)


@needs_native
@pytest.mark.parametrize("kind", [*LARGE, "one_sided"])
@both_widths
@finite_or_not
def test_one_sign_is_exact_where_it_samples(kind: str, dtype: str, spoil: bool) -> None:
    x = some(kind, dtype, spoil)
    for k in (1, x.size // 1000, x.size // 100, x.size // 2):
        hold_kernel("one_sign", x, k)
    hold_kernel("one_sign", -x, x.size // 100, threads=(1,))
    hold_kernel("one_sign_sum", x, x, x.size // 100, 0.5, threads=(1,))


@needs_native
@every_kind
@both_widths
@finite_or_not
def test_chunks_do_not_depend_on_those_before(kind: str, dtype: str, spoil: bool) -> None:
    x = some(kind, dtype, spoil)
    for k, chunk in ((64, 4096), (1, 100), (900, 1000)):
        hold_kernel("chunk_topk", x, k, chunk, threads=(1, 3))


@needs_native
@every_kind
@both_widths
def test_topk_of_a_sum_is_an_addition_and_a_topk(kind: str, dtype: str) -> None:
    x, start = large(kind, dtype), large("normal", dtype)[: large(kind, dtype).size]
    residual = start.copy()
    for k in (1, x.size // 100):
        calls = [functools.partial(native.topk_sum, residual, x, k, threads=threads) for threads in (1, 2)]
        hold(reference.topk(start + x, k), *calls)
    assert plain(residual) == plain(start)


@needs_native
@every_kind
@both_widths
def test_an_edge_leaves_out_what_is_below_it(kind: str, dtype: str) -> None:
    """Where fewer than k reach it, some more, and far more."""
    x, start = nonfinite(large(kind, dtype)), large("normal", dtype)[: large(kind, dtype).size]
    total = start + x
    bits = np.sort(reference.magnitude_bits(total))
    infinity = reference.magnitude_edge(np.inf, x.dtype)
    k = x.size // 100
    for rank in (k // 2, k + k // 2, 20 * k):
        edge = min(int(bits[-rank]), infinity)
        hold_kernel("topk_sum", start, x, k, 1.0, 1.0, edge)
        hold_kernel("topk", total, k, edge, threads=(1,))


@needs_native
@every_kind
@both_widths
@finite_or_not
def test_a_remembered_edge_changes_no_result(kind: str, dtype: str, spoil: bool) -> None:
    """Whether it is the right one, near, far away on either side, or no number's."""
    x, start = some(kind, dtype, spoil), large("normal", dtype)[: large(kind, dtype).size]
    total = start + x
    for k in (x.size // 1000, x.size // 10):
        expected = reference.topk(total, k)
        edge = int(reference.magnitude_bits(expected[1]).min())
        octave = 1 << np.finfo(x.dtype).nmant
        for told in (edge, edge - octave // 40, edge + octave // 40, edge - octave, edge + octave, -1, 2**63 - 1):
            calls = [functools.partial(beginning_with, told, start, x, k, threads) for threads in (1, 2)]
            hold((*expected, edge), *calls)


def beginning_with(edge: int, start: np.ndarray, x: np.ndarray, k: int, threads: int) -> tuple[Any, ...]:
    """A selection, and the edge that it leaves to the next one."""
    remembered = np.array([edge])
    return (*native.topk_sum(start, x, k, remembered=remembered, threads=threads), int(remembered[0]))


def test_an_edge_is_remembered_beside_a_residual_that_is_worth_it() -> None:
    residual, x = np.zeros((2, 2**15), np.float32)
    x[:] = np.arange(x.size)
    kernels.of(x).topk_sum(residual, x, 100)
    remembered = edge_beside(residual, 100)
    assert remembered is not None
    assert remembered[0] == reference.magnitude_edge(x.size - 100, x.dtype)
    assert edge_beside(residual[:100], 10) is None


@needs_native
@every_kind
def test_topk_of_a_scaled_sum_writes_nothing(kind: str) -> None:
    x, start = large(kind, "float32"), large("normal", "float32")[: large(kind, "float32").size]
    residual = start.copy()
    for k in (1, x.size // 100):
        hold_kernel("topk_sum", residual, x, k, 0.5, 1.9, threads=(1,))
    assert plain(residual) == plain(start)


@needs_native
@both_widths
@pytest.mark.parametrize("mask", [None, False, True])
def test_what_is_kept_does_not_depend_on_threads(mask: bool | None, dtype: str) -> None:
    """Entries that were sent lie on both sides of where threads meet."""
    x, start = large("magnitudes", dtype), large("normal", dtype)[: large("magnitudes", dtype).size]
    sent = reference.topk(x, x.size // 10)

    def kept(module: Any, threads: int) -> list[np.ndarray]:
        residual, velocity = start.copy(), None if mask is None else start[::-1].copy()
        module.compensate(residual, x, *sent, 0.5, 1.9, velocity, 0.9, 0.81, bool(mask), threads=threads)
        return [residual] if velocity is None else [residual, velocity]

    hold(kept(reference, 1), *(functools.partial(kept, native, threads) for threads in (1, 2, 3)))


@needs_native
@both_widths
def test_energies_do_not_depend_on_threads(dtype: str) -> None:
    x, start = large("magnitudes", dtype), large("normal", dtype)[: large("magnitudes", dtype).size]
    sent, parts = reference.topk(x, x.size // 10), [reference.topk(start, x.size // share) for share in (100, 7)]

    def kept(module: Any, threads: int) -> list[np.ndarray]:
        residual = start.copy()
        energies = module.compensate_mean(residual, x, *sent, parts, 0.3, threads=threads)
        return [residual, np.array([*energies, module.energy(x, threads=threads)])]

    hold(kept(reference, 1), *(functools.partial(kept, native, threads) for threads in (1, 2, 3)))


@needs_native
@both_widths
def test_accumulate_adds_large_parts_in_their_order(dtype: str) -> None:
    dense = [large(kind, dtype)[:262_147] for kind in ("magnitudes", "clustered", "normal")]
    parts = [reference.topk(x, x.size // share) for x, share in zip(dense, (100, 10, 3), strict=True)]

    def mean(module: Any, threads: int) -> np.ndarray:
        out = np.empty(262_147, dtype)
        module.accumulate(out, parts, 1 / 3, threads)
        return out

    hold(mean(reference, 1), *(functools.partial(mean, native, threads) for threads in (1, 2)))


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
    command = [sys.executable, "-c", WITHOUT_THREADS, str(Path(__file__).parents[1] / "support")]
    huge_stacks = functools.partial(resource.setrlimit, resource.RLIMIT_STACK, stack)
    run = subprocess.run(command, capture_output=True, text=True, preexec_fn=huge_stacks)
    assert (run.returncode, run.stdout) == (0, "done without threads\n"), run.stderr
