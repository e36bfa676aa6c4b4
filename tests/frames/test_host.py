"""Tensors come as they are: NumPy, torch, TensorFlow, ml_dtypes; and what cannot be sent is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from strategies import BACKENDS, make, same_bits, using

import sparsewire as sw
from sparsewire.core.host import to_host

ALL = "topk(100%) | values=raw"


def sent(x: Any, s: str = "nonzero | values=raw") -> np.ndarray:
    return sw.decode(sw.encode(x, s)).to_dense()


# --- NumPy and what NumPy takes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_byte_order_does_not_matter(dtype: str) -> None:
    x = make("magnitudes", 65, dtype)
    swapped = x.astype(x.dtype.newbyteorder(">"))
    assert sw.encode(swapped, "topk(10%)") == sw.encode(x, "topk(10%)")
    residual = swapped.copy()
    frame, _ = sw.compress(swapped, "topk(10%)", residual=residual)
    other = x.copy()
    assert frame == sw.compress(x, "topk(10%)", residual=other)[0]
    assert np.array_equal(residual, other)


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[::2], lambda x: x[:, ::-1], lambda x: x[1:, 2:3]])
def test_strides_do_not_matter(view: Any) -> None:
    x = view(make("normal", 60, "float32").reshape(6, 10))
    assert same_bits(sent(x, ALL), np.ascontiguousarray(x))
    t = torch.from_numpy(make("normal", 60, "float32").reshape(6, 10)).T[1::2]
    assert same_bits(sent(t, ALL), t.contiguous().numpy())


def test_a_read_only_array_can_be_sent() -> None:
    x = make("normal", 20, "float32")
    x.flags.writeable = False
    frame, left = sw.compress(x, "topk(k=3)")
    assert np.array_equal(sw.decode(frame).to_dense() + left, x)


def test_compress_leaves_its_input_alone() -> None:
    x = make("normal", 20, "float32")
    before = x.copy()
    for tensor in (x, torch.from_numpy(x)):
        sw.compress(tensor, "topk(k=3)")
        sw.compress(tensor, "topk(k=3)", residual=np.zeros(20, np.float32))
        assert same_bits(x, before)


def test_lists_and_numbers_are_float64() -> None:
    assert sw.decode(sw.encode([[0.0, 1.5], [2.0, 0.0]], "nonzero")).dtype == "float64"
    assert sent([[0.0, 1.5], [2.0, 0.0]]).tolist() == [[0, 1.5], [2, 0]]
    assert sent(3.5).tolist() == 3.5


@pytest.mark.parametrize(
    "x",
    [
        [1, 2],
        np.arange(3),
        np.array([True]),
        np.array([1j]),
        np.array(["a"]),
        np.array([1.0], np.longdouble),
        np.array([1.0], ml_dtypes.float8_e4m3fn),
        torch.arange(3),
        torch.tensor([1], dtype=torch.int32).to_sparse(),
        None,
    ],
    ids=str,
)
def test_what_is_no_gradient_is_refused_with_advice(x: Any) -> None:
    with pytest.raises(sw.InputError, match="convert"):
        sw.encode(x, "nonzero")


def test_a_residual_that_does_not_fit_is_refused() -> None:
    x = np.ones(4, np.float32)
    coo = torch.ones(4).to_sparse()
    for residual in (np.zeros(5, np.float32), np.zeros(4), sw.Sparse([0], np.ones(1, np.float32), (4,)), coo):
        with pytest.raises(sw.InputError, match="residual"):
            sw.compress(x, "topk(k=1)", residual=residual)
    for residual in (np.zeros(5, np.float32), np.zeros(4), coo):
        with pytest.raises(sw.InputError):
            sw.compress(sw.Sparse([0], np.ones(1, np.float32), (4,)), "nonzero", residual=residual)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_residual_that_cannot_be_updated_is_refused(backend: str) -> None:
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    for residual in (frozen, [0.0, 0.0], (0.0, 0.0)):
        with using(backend), pytest.raises(sw.InputError, match="residual"):
            sw.compress(np.ones(2), "topk(k=1)", residual=residual)


def test_more_dimensions_than_a_frame_can_say_are_refused_before_one_is_made() -> None:
    assert sent(np.ones((1,) * 32, np.float32)).ndim == 32
    with pytest.raises(sw.InputError, match="32"):
        sw.encode(np.ones((1,) * 33, np.float32), "nonzero")


# --- sixteen bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["raw", "half", "qsgd(6)", "bfloat16+deflate"])
def test_bfloat16_is_the_same_from_torch_and_ml_dtypes(values: str) -> None:
    x = make("magnitudes", 65, "bfloat16")
    t = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    s = f"topk(30%) | values={values}"
    assert sw.encode(x, s) == sw.encode(t, s)
    _, left = sw.compress(x, s)
    _, left_t = sw.compress(t, s)
    assert (left.dtype, left_t.dtype) == (x.dtype, torch.bfloat16)
    assert same_bits(left_t.view(torch.int16).numpy().view(x.dtype), left)


def test_bfloat16_decodes_to_bfloat16_numbers_in_float32() -> None:
    x = np.array([1.0, 0.3, -2.7], ml_dtypes.bfloat16)
    sparse = sw.decode(sw.encode(x, "nonzero"))
    assert (sparse.dtype, sparse.values.dtype) == ("bfloat16", np.float32)
    assert same_bits(sparse.values, x.astype(np.float32))


def test_every_16_bit_number_survives() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype, infinity in ((np.float16, 0x7C00), (ml_dtypes.bfloat16, 0x7F80)):
        decoded = sent(bits.view(dtype), ALL).astype(np.float32)
        numbers = (bits & 0x7FFF) <= infinity
        assert np.array_equal(decoded[numbers], bits[numbers].view(dtype).astype(np.float32))
        assert np.isnan(decoded[~numbers]).all()


# --- torch sparse ------------------------------------------------------------------------------------------------


def test_duplicates_in_coo_are_summed() -> None:
    x = torch.sparse_coo_tensor([[1, 0, 1], [2, 1, 2]], [1.0, 5.0, 0.25], (2, 3), check_invariants=False)
    sparse = sw.decode(sw.encode(x, "nonzero"))
    assert sparse.indices.tolist() == [1, 5]
    assert sparse.values.tolist() == [5.0, 1.25]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_coo_rows_are_one_entry_each(dtype: torch.dtype) -> None:
    table = torch.nn.Embedding(50, 4, sparse=True)
    table(torch.tensor([7, 3, 7])).sum().backward()
    x = table.weight.grad.to(dtype)
    assert np.array_equal(sent(x), x.to_dense().float().numpy())
    decoded = sw.decode(sw.encode(x, "nonzero"))
    assert (decoded.indices.tolist(), decoded.width) == ([3, 7], 4)


def test_coo_without_entries_is_a_tensor_of_zeros() -> None:
    assert sent(torch.sparse_coo_tensor(size=(3, 4), check_invariants=False)).tolist() == np.zeros((3, 4)).tolist()


def test_a_table_too_large_for_32_bits_is_sent_as_its_rows() -> None:
    x = torch.sparse_coo_tensor([[2**29]], torch.ones(1, 8), (2**30, 8), check_invariants=False)
    sparse = sw.decode(sw.encode(x, "nonzero | indices=run_length"))
    assert (sparse.indices.tolist(), sparse.width, sparse.numel) == ([2**29], 8, 2**33)


def test_a_coo_gradient_and_a_dense_residual_go_together() -> None:
    x = torch.tensor([0.0, 1.0, 0.0, -2.0]).to_sparse()
    residual = torch.tensor([9.0, 0.5, 9.0, 0.0])
    frame, left = sw.compress(x, "nonzero", residual=residual)
    assert sw.decode(frame).to_dense().tolist() == [0, 1.5, 0, -2]
    assert left.tolist() == [9, 0, 9, 0]


def test_other_torch_layouts_are_refused_with_advice() -> None:
    block = torch.ones(4, 4).to_mkldnn()
    with pytest.raises(sw.InputError, match="to_sparse_coo"):
        sw.encode(block, "nonzero")


def test_a_parameter_that_wants_gradients_can_be_sent() -> None:
    assert sent(torch.nn.Parameter(torch.tensor([1.0, 2.0]))).tolist() == [1, 2]


# --- others ------------------------------------------------------------------------------------------------------


@dataclass
class IndexedSlices:
    """What TensorFlow gives for embeddings, as far as sparsewire looks."""

    values: Any
    indices: Any
    dense_shape: Any


def test_indexed_slices_are_rows_in_any_order_with_repeats() -> None:
    x = IndexedSlices(np.array([[1, 2], [3, 4], [10, 20]], np.float32), np.array([4, 1, 4]), np.array([6, 2]))
    sparse = sw.decode(sw.encode(x, "nonzero"))
    assert sparse.shape == (6, 2)
    assert (sparse.indices.tolist(), sparse.width) == ([1, 4], 2)
    assert sparse.values.tolist() == [3, 4, 11, 22]


def test_indexed_slices_of_a_vector_and_of_nothing() -> None:
    vector = IndexedSlices(np.array([2.0, 3.0], np.float32), np.array([5, 0]), np.array([8]))
    assert sent(vector).tolist() == [3, 0, 0, 0, 0, 2, 0, 0]
    nothing = IndexedSlices(np.zeros((0, 2), np.float32), np.zeros(0, np.int64), np.array([6, 2]))
    assert not sent(nothing).any()


def test_anything_that_numpy_understands_is_dense() -> None:
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.array([0, 2], np.float32)

    assert to_host(Tensor()).flat.tolist() == [0, 2]


# --- Sparse ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indices", "values", "shape"),
    [
        ([1, 1], [1.0, 2.0], (4,)),
        ([2, 1], [1.0, 2.0], (4,)),
        ([-1, 1], [1.0, 2.0], (4,)),
        ([1, 4], [1.0, 2.0], (4,)),
        ([1], [1.0, 2.0], (4,)),
        ([0.5], [1.0], (4,)),
        ([[1]], [[1.0]], (4,)),
        ([1], [1], (4,)),
        ([0], [1.0], (-1, -4)),
        ([0], [1.0], (2**32, 2**31)),
    ],
)
def test_a_sparse_that_is_none_is_refused(indices: Any, values: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(sw.InputError):
        sw.Sparse(indices, values, shape)
