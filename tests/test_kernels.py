"""The native kernels give what the reference gives: same bytes, same dtypes, the same inputs refused."""

from __future__ import annotations

import copy
import functools
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_rows import READERS, WRITERS, Args
from strategies import make

from sparsewire import kernels
from sparsewire.kernels import reference
from sparsewire.kernels.reference.frequency_table import _pack_exact

native = kernels.native()
needs_native = pytest.mark.skipif(native is None, reason="the extension is not built here")
ISAS = native.isas() if native else []
DENSE = ["accumulate", "all_finite", "threshold", "topk", "topk_sum"]


@pytest.fixture(autouse=True, scope="module")
def _restore_isa() -> Any:
    before = native.isa() if native else ""
    yield
    if native:
        native.set_isa(before)


def plain(result: Any) -> Any:
    """A result as something `==` compares bit for bit."""
    if isinstance(result, np.ndarray):
        return result.dtype.str, result.shape, result.tobytes()
    return tuple(map(plain, result)) if isinstance(result, (tuple, list)) else result


def outcome(module: Any, name: str, args: Args, **options: int) -> Any:
    """What a kernel returns and leaves in its arguments, or that it refused them."""
    args = copy.deepcopy(args)
    try:
        return plain(getattr(module, name)(*args, **options)), plain(args)
    except ValueError:
        return "refused"


def test_every_kernel_has_a_row() -> None:
    assert {*WRITERS, *READERS} == set(kernels.CONTRACT)


@needs_native
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted({**WRITERS, **READERS}))
def test_native_is_the_reference(name: str, isa: str) -> None:
    native.set_isa(isa)

    @settings(max_examples=40)
    @given(args={**WRITERS, **READERS}[name])
    def law(args: Args) -> None:
        expected = outcome(reference, name, args)
        assert expected != "refused"
        assert outcome(native, name, args) == expected
        if name in DENSE:
            assert outcome(native, name, args, threads=2) == expected

    law()


# --- what no encoder wrote ---------------------------------------------------------------------------------------


@st.composite
def damaged(draw: st.DrawFn, name: str) -> Args:
    """A reader's arguments with one of them changed."""
    args = list(copy.deepcopy(draw(READERS[name])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    place = draw(st.integers(0, len(args) - 1))
    if isinstance(args[place], np.ndarray):
        args[place] = damage(args[place], draw(st.sampled_from(["flip", "cut", "grow", "zero", "ones"])), rng)
    elif isinstance(args[place], int) and not isinstance(args[place], bool):
        args[place] = max(2, args[place] + draw(st.sampled_from([-9, -1, 1, 9])))
    return tuple(args)


def damage(array: np.ndarray, how: str, rng: np.random.Generator) -> np.ndarray:
    if how == "cut":
        return array[: array.size // 2].copy()
    if how == "grow":
        return np.append(array, array[:3] if array.size else np.zeros(1, array.dtype))
    if array.size and array.dtype.kind == "u":
        at = rng.integers(0, array.size)
        new = {"flip": array[at] ^ array.dtype.type(1 << int(rng.integers(0, 8))), "zero": 0}
        array[at] = new.get(how, np.iinfo(array.dtype).max)
    return array


@needs_native
@pytest.mark.parametrize("name", sorted(READERS))
def test_native_refuses_what_the_reference_refuses(name: str) -> None:
    @settings(max_examples=120)
    @given(args=damaged(name))
    def law(args: Args) -> None:
        assert outcome(native, name, args) == outcome(reference, name, args)

    law()


def exact_table(*frequencies: int) -> np.ndarray:
    """As the encoder writes frequencies, whatever their sum."""
    return _pack_exact(np.array(frequencies, np.int64))


REFUSED: list[tuple[str, Args]] = [
    ("topk", (np.zeros(3, np.float32), 4)),
    ("topk", (np.zeros(3, np.float32), -1)),
    ("compensate", (np.zeros(3, np.float32), np.zeros(4, np.float32))),
    ("compensate", (np.zeros(3, np.float32), np.zeros(3, np.float32), 1.0, np.zeros(4, np.float32))),
    ("topk_sum", (np.zeros(3, np.float32), np.zeros(3, np.float32), 1, 1.0, np.zeros(4, np.float32))),
    ("topk_sum", (np.zeros(3, np.float32), np.zeros(3, np.float32), 4)),
    ("topk_sum", (np.zeros(3, np.float32), np.zeros(4, np.float32), 1)),
    ("threshold", (np.zeros(3, np.float32), -1)),
    ("threshold", (np.zeros(3, np.float32), 0x7F800001)),
    ("threshold", (np.zeros(3, np.float64), 0x7FF0000000000001)),
    ("accumulate", (np.zeros(3, np.float32), [(np.array([3], np.int32), np.ones(1, np.float32))], 1.0)),
    ("accumulate", (np.zeros(3, np.float32), [(np.array([-1], np.int32), np.ones(1, np.float32))], 1.0)),
    ("accumulate", (np.zeros(3, np.float32), [(np.array([0, 1], np.int32), np.ones(1, np.float32))], 1.0)),
    ("scatter_add", (np.zeros(3, np.float32), np.array([3], np.int32), np.ones(1, np.float32))),
    ("scatter_add", (np.zeros(3, np.float32), np.array([1, 1], np.int32), np.ones(2, np.float32))),
    ("scatter_add", (np.zeros(3, np.float32), np.array([0, 9, 2], np.int32), np.ones(3, np.float32))),
    ("scatter_add", (np.zeros(3, np.float32), np.array([0, 1], np.int32), np.ones(1, np.float32))),
    ("pack_bits", (np.zeros(3, np.uint32), 33)),
    ("pack_uneven", (np.zeros(2, np.uint32), np.array([1, 33], np.uint8))),
    ("pack_uneven", (np.zeros(2, np.uint32), np.array([1], np.uint8))),
    ("unpack_bits", (np.zeros(3, np.uint8), 65, 1)),
    ("unpack_bits", (np.zeros(3, np.uint8), 8, 2**40)),
    ("unpack_uneven", (np.zeros(9, np.uint8), np.array([65], np.uint8))),
    ("from_bitmap", (np.full(1, 255, np.uint8), 7, 8)),
    ("from_bitmap", (np.zeros(1, np.uint8), 2**62, 0)),
    ("from_gaps", (np.array([2**64 - 1, 2**64 - 1], np.uint64), 2**62)),
    ("from_run_lengths", (np.zeros(1, np.uint32), np.array([2**32 - 1], np.uint32), 2**31, 2**31)),
    ("from_run_lengths", (np.array([0, 2**64 - 1], np.uint64), np.array([1, 2], np.uint64), 2**62, 3)),
    ("rice_decode", (np.array([32], np.uint8), np.zeros(4, np.uint8), np.ones(1, np.uint8), 1, 8, False)),
    ("rice_decode", (np.zeros(0, np.uint8), np.zeros(0, np.uint8), np.zeros(0, np.uint8), 2**40, 8, True)),
    ("elias_fano_decode", (np.zeros(0, np.uint8), np.zeros(0, np.uint8), 2**62, 2**40)),
    ("huffman_decode", (np.zeros(1, np.uint8), np.array([1, 1], np.uint8), 2**40)),
    ("huffman_decode", (np.zeros(1, np.uint8), np.array([1, 2], np.uint8), 1)),
    ("huffman_decode", (np.zeros(1, np.uint8), np.array([13], np.uint8), 1)),
    ("huffman_encode", (np.array([2], np.uint8), np.array([1, 1], np.uint8))),
    ("dequantize", (np.array([8], np.uint32), np.ones(1, np.float32), 3, 512)),
    ("dequantize", (np.zeros(3, np.uint32), np.ones(1, np.float32), 3, 2)),
    ("permute", (np.array([5], np.uint64), 5, 0)),
    ("quantizer_fit", (np.ones(3, np.float32), 0.0)),
    ("two_level_fit", (np.ones(3, np.float64), np.nan)),
    ("alphabet_fit", (np.ones(7, np.int64),)),
    ("alphabet_fit", (np.full(1220, -1, np.int64),)),
    ("alphabet_fit", (np.full(1220, 2**60, np.int64),)),
    ("symbols_decode", (np.array([255], np.uint8), np.zeros(4, np.uint8), 0, 1, 0)),
    ("symbols_decode", (np.array([2], np.uint8), np.zeros(4, np.uint8), 23, 1, 0)),
    ("frequency_table_encode", (np.zeros(5, np.int64), 1)),
    ("frequency_table_encode", (np.ones(97, np.int64), 1)),
    ("frequency_table_encode", (np.array([1, -1], np.int64), 1)),
    ("frequency_table_encode", (np.ones(5, np.int64), 4)),
    ("frequency_table_encode", (np.full(2, 2**40, np.int64), 3)),
    ("frequency_table_resolution", (np.zeros(5, np.int64),)),
    ("frequency_table_resolution", (np.ones(97, np.int64),)),
    ("frequency_table_resolution", (np.full(2, 2**40, np.int64),)),
    ("frequency_table_decode", (np.full(12, 255, np.uint8), 96, 1, 1)),
    ("frequency_table_decode", (np.ones(1, np.uint8), 1, 3, 1)),
    ("frequency_table_decode", (np.zeros(0, np.uint8), 0, 0, 1)),
    ("frequency_table_decode", (np.zeros(0, np.uint8), 2**40, 0, 1)),
    ("frequency_table_decode", (np.zeros(0, np.uint8), 0, 0, 3)),
    ("frequency_table_decode", (exact_table(4095), 1, 0, 3)),
    ("frequency_table_decode", (exact_table(4097), 1, 0, 3)),
    ("frequency_table_decode", (exact_table(2048, 2049), 2, 0, 3)),
    ("frequency_table_decode", (exact_table(2048, 2048), 2, 0, 4)),
    ("frequency_table_decode", (exact_table(2048, 2048), 1, 0, 3)),
    ("frequency_table_decode", (exact_table(2048, 2048)[:-1], 2, 0, 3)),
    ("frequency_table_decode", (np.append(exact_table(2048, 2048), np.zeros(1, np.uint8)), 2, 0, 3)),
    ("frequency_table_decode", (exact_table(2048, 2048) | np.array([0, 0, 0, 0x80], np.uint8), 2, 0, 3)),
    ("frequency_table_decode", (np.array([0, 0, 0, 8], np.uint8), 1, 0, 3)),
    ("frequency_table_decode", (np.array([2], np.uint8), 1, 0, 3)),
]


@pytest.mark.parametrize("module", [reference, *([native] if native else [])])
@pytest.mark.parametrize(("name", "args"), REFUSED)
def test_malformed_arguments_are_a_value_error(name: str, args: Args, module: Any) -> None:
    with pytest.raises(ValueError):
        getattr(module, name)(*copy.deepcopy(args))


@pytest.mark.parametrize("module", [reference, *([native] if native else [])])
def test_a_sum_that_is_no_number_comes_without_a_warning(module: Any) -> None:
    residual, x = np.array([np.inf, 3e38, 1], np.float32), np.array([-np.inf, 3e38, 1], np.float32)
    assert module.topk_sum(residual, x, 2)[0].tolist() == [0, 1]
    module.compensate(residual, x)
    assert not np.isfinite(residual[:2]).any()


# --- large enough to be sampled ----------------------------------------------------------------------------------

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
            assert plain(native.topk(x, k, threads)) == expected_topk(kind, dtype, k, spoil)


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
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("nesterov", [False, True])
def test_topk_of_residual_velocity_and_gradient_writes_nothing(kind: str, isa: str, nesterov: bool) -> None:
    native.set_isa(isa)
    x, start = large(kind, "float32"), large("normal", "float32")[: large(kind, "float32").size]
    residual, velocity = start.copy(), start[::-1].copy()
    settings = (0.5, velocity, 0.9, nesterov)
    for k in (1, x.size // 100):
        assert plain(native.topk_sum(residual, x, k, *settings)) == plain(reference.topk_sum(start, x, k, *settings))
    assert plain(residual) == plain(start) and plain(velocity) == plain(start[::-1].copy())


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
