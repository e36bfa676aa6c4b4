"""The native kernels give what the reference gives: same bytes, same dtypes, the same inputs refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_dense import edges, topk_sum_args
from kernel_native import ISAS, native, needs_native, plain
from kernel_rows import READERS, WRITERS, Args

from sparsewire import kernels
from sparsewire.kernels import reference
from sparsewire.kernels.reference.frequency_table import _pack_exact

SELECTIONS = ["chunk_topk", "chunk_topk_sum", "one_sign", "one_sign_sum", "threshold", "topk", "topk_sum"]
DENSE = ["accumulate", "all_finite", "compensate", "compensate_mean", "energy", *SELECTIONS]


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
@pytest.mark.parametrize("name", sorted({**WRITERS, **READERS}))
def test_native_is_the_reference(name: str) -> None:
    @settings(max_examples=40)
    @given(args={**WRITERS, **READERS}[name])
    def law(args: Args) -> None:
        expected = outcome(reference, name, args)
        assert expected != "refused"
        for isa in ISAS:
            native.set_isa(isa)
            assert outcome(native, name, args) == expected, isa
            if name in DENSE:
                assert outcome(native, name, args, threads=2) == expected, isa

    law()


@needs_native
@settings(max_examples=100)
@given(args=topk_sum_args(), data=st.data())
def test_an_edge_that_is_remembered_is_no_more_than_a_hint(args: Args, data: st.DataObject) -> None:
    residual, x, k, *rest = args
    hint = data.draw(edges(x) | st.integers(-(2**63), 2**63 - 1))
    factors, edge = rest[:2] or (1.0, 1.0), (*rest[2:], 0)[0]
    args = residual, x, k, *factors, edge, np.array([hint])
    for isa in ISAS:
        native.set_isa(isa)
        assert outcome(native, "topk_sum", args) == outcome(reference, "topk_sum", args), isa


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


NOTHING = np.empty(0, np.int32), np.empty(0, np.float32)
REFUSED: list[tuple[str, Args]] = [
    ("topk", (np.zeros(3, np.float32), 4)),
    ("topk", (np.zeros(3, np.float32), -1)),
    ("one_sign", (np.zeros(3, np.float32), 4)),
    ("one_sign", (np.zeros(3, np.float32), -1)),
    ("one_sign_sum", (np.zeros(3, np.float32), np.zeros(4, np.float32), 1)),
    *(("chunk_topk", (np.zeros(3, np.float32), k, chunk)) for k, chunk in ((0, 1), (2, 1), (1, 2**30 + 1), (-1, 4))),
    ("chunk_topk_sum", (np.zeros(3, np.float32), np.zeros(4, np.float32), 1, 4)),
    ("compensate", (np.zeros(3, np.float32), np.zeros(4, np.float32), *NOTHING)),
    ("compensate", (np.zeros(3, np.float32), np.zeros(3, np.float32), *NOTHING, 1.0, 1.0, np.zeros(4, np.float32))),
    ("compensate", (np.zeros(3, np.float32), np.zeros(3, np.float32), np.array([3], np.int32), NOTHING[1])),
    ("compensate", (np.zeros(3, np.float32), np.zeros(3, np.float32), np.array([3], np.int32), np.ones(1, np.float32))),
    ("compensate", (np.zeros(3, np.float32), np.zeros(3, np.float32), np.array([1, 0]), np.ones(2, np.float32))),
    ("compensate_mean", (np.zeros(3, np.float32), np.zeros(4, np.float32), *NOTHING, [], 1.0)),
    ("compensate_mean", (*np.zeros((2, 3), np.float32), np.array([3], np.int32), np.ones(1, np.float32), [], 1.0)),
    ("compensate_mean", (*np.zeros((2, 3), np.float32), np.array([1, 0]), np.ones(2, np.float32), [], 1.0)),
    ("compensate_mean", (*np.zeros((2, 3), np.float32), *NOTHING, [(np.array([3]), np.ones(1, np.float32))], 1.0)),
    ("compensate_mean", (*np.zeros((2, 3), np.float32), *NOTHING, [(np.array([1, 0]), np.ones(2, np.float32))], 1.0)),
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
    ("sketch_insert", (np.zeros(4, np.float32), np.arange(2), np.zeros(3, np.float32), 2, 0)),
    ("sketch_insert", (np.zeros(0, np.float32), np.arange(2), np.zeros(2, np.float32), 1, 0)),
    ("sketch_query", (np.zeros(3, np.float32), np.arange(2), 2, 0)),
    ("sketch_query", (np.zeros(3, np.float32), np.arange(2), 0, 0)),
    ("sketch_query", (np.zeros(0, np.float32), np.arange(2), 1, 0)),
    ("sketch_load", (np.arange(2), 0, 0)),
    ("sketch_load", (np.arange(2), 2**32 + 1, 0)),
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
    module.compensate(residual, x, *NOTHING)
    assert not np.isfinite(residual[:2]).any()
