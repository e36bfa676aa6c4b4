"""The laws that every pair of codecs keeps. A codec that is registered is in `PAIRS`, and so in every law here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import (
    BACKENDS,
    INDEX_CODECS,
    PAIRS,
    SELECTS,
    VALUE_CODECS,
    fits,
    make,
    same_bits,
    selects,
    sparses,
    supports,
    tensors,
    using,
    work,
)

import sparsewire as sw
from sparsewire.codecs.contract import Context
from sparsewire.errors import InputError

every_pair = pytest.mark.parametrize(("index", "value"), PAIRS)
every_index = pytest.mark.parametrize("index", INDEX_CODECS)
every_value = pytest.mark.parametrize("value", VALUE_CODECS)
seeds = st.integers(0, 2**64 - 1)
few_examples = settings(max_examples=8)  # of each of some 160 pairs
TOO_LARGE = 2**22  # bytes: a bitmap of 2**40 elements is no test


def plan(select: str, index: str = "best", value: str = "raw") -> str:
    return f"{select} | indices={index} | values={value}"


def left_by_definition(total: np.ndarray, frame: bytes) -> np.ndarray:
    """One subtraction where something was sent, the input itself elsewhere."""
    sent, left = sw.decode(frame), total.copy()
    left[sent.indices] = total[sent.indices] - sent.work_values
    return left


def realises(codec: str, wanted: np.ndarray, seen: np.ndarray) -> bool:
    """The same indices; a filter has as many, or all of them and some more."""
    if codec == "bloom":
        return wanted.size == seen.size or bool(np.isin(wanted, seen).all())
    return same_bits(wanted, seen)


def to_torch(x: np.ndarray) -> torch.Tensor:
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def to_numpy(x: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    return x.view(torch.int16).numpy().view(dtype) if x.dtype == torch.bfloat16 else x.numpy()


# --- what the sender declares is what the receiver sees ----------------------------------------------------------


@every_index
@given(support=supports())
def test_an_index_codec_decodes_to_what_it_declared(index: str, support: tuple[np.ndarray, int]) -> None:
    indices, numel = support
    codec = sw.scheme(plan("nonzero", index)).indices
    ctx = Context("float32", numel, indices.size)
    assume(fits(codec, numel) and codec.estimate(indices, ctx) <= TOO_LARGE)
    body, realised = codec.encode(indices, ctx)
    decoded = codec.decode(memoryview(body), replace(ctx, count=realised.size))
    assert same_bits(decoded, realised)


@every_value
@given(x=tensors(), key=seeds)
def test_a_value_codec_decodes_to_what_it_declared(value: str, x: np.ndarray, key: int) -> None:
    codec = sw.scheme(plan("nonzero", value=value)).values
    ctx = Context(x.dtype.name, x.size, x.size, own_key=key)
    body, approx = codec.encode(work(x), ctx)
    assert same_bits(codec.decode(memoryview(body), ctx), approx)
    assert approx.dtype == work(x).dtype


@every_pair
@few_examples
@given(x=tensors(), select=selects(), step=st.integers(0, 9))
def test_what_is_left_is_the_input_less_what_was_decoded(
    index: str, value: str, x: np.ndarray, select: str, step: int
) -> None:
    frame, left = sw.compress(x, plan(select, index, value), step=step, name="w")
    assert frame == sw.encode(x, plan(select, index, value), step=step, name="w")
    assert same_bits(left, left_by_definition(work(x), frame).astype(x.dtype).reshape(x.shape))
    decoded = sw.decode(frame)
    assert (decoded.shape, decoded.dtype) == (x.shape, x.dtype.name)
    assert decoded.to_dense().shape == x.shape


@every_pair
@few_examples
@given(x=sparses())
def test_a_sparse_of_any_size_arrives_as_declared(index: str, value: str, x: sw.Sparse) -> None:
    s = sw.scheme(plan("nonzero", index, value))
    ctx = Context(x.dtype, x.numel, x.count)
    assume(fits(s.indices, x.numel) and s.indices.estimate(x.indices, ctx) <= TOO_LARGE)
    frame, left = sw.compress(x, s)
    decoded = sw.decode(frame)
    assert realises(s.indices.id, x.indices, decoded.indices)
    assert decoded.indices.dtype == (np.int32 if x.numel <= 2**31 else np.int64)
    assert (decoded.shape, decoded.dtype) == (x.shape, x.dtype)
    either = np.union1d(x.indices, decoded.indices)
    rest = x.at(either) - decoded.at(either)
    kept = np.flatnonzero(rest)
    expected = sw.Sparse(either[kept], rest[kept], x.shape, x.dtype)
    assert same_bits(left.indices, expected.indices)
    assert same_bits(left.values, expected.values)
    with using("reference"):
        assert sw.encode(x, s) == frame
        assert same_bits(sw.decode(frame).indices, decoded.indices)


@every_index
def test_lossless_values_make_the_frame_lossless(index: str) -> None:
    x = make("magnitudes", 1025, "float32").reshape(5, 205)
    assert same_bits(sw.decode(sw.encode(x, plan("topk(100%)", index, "raw"))).to_dense(), x)
    assert not sw.compress(x, plan("topk(100%)", index, "raw"))[1].any()


# --- conservation with a residual --------------------------------------------------------------------------------


@every_value
@given(x=tensors(), select=selects(), seed=st.integers(0, 99))
def test_a_given_residual_takes_part_and_keeps_the_rest_in_place(
    value: str, x: np.ndarray, select: str, seed: int
) -> None:
    residual = make("normal", x.size, x.dtype.name, seed).reshape(x.shape)
    total = work(residual) + work(x)
    frame, left = sw.compress(x, plan(select, value=value), residual=residual)
    assert left is residual
    assert same_bits(residual, left_by_definition(total, frame).astype(x.dtype).reshape(x.shape))
    if x.dtype == work(x).dtype:
        assert frame == sw.encode(total.reshape(x.shape), plan(select, value=value))


@every_value
@given(x=tensors(), select=selects(), seed=st.integers(0, 99))
def test_torch_gives_the_bytes_and_the_residual_of_numpy(value: str, x: np.ndarray, select: str, seed: int) -> None:
    residual = make("normal", x.size, x.dtype.name, seed).reshape(x.shape)
    kept = to_torch(residual)
    frame, left = sw.compress(to_torch(x), plan(select, value=value), residual=kept)
    assert left is kept
    assert frame == sw.compress(x, plan(select, value=value), residual=residual)[0]
    assert same_bits(to_numpy(kept, x.dtype), residual)
    fresh = sw.compress(to_torch(x), plan(select, value=value))[1]
    assert same_bits(to_numpy(fresh, x.dtype), sw.compress(x, plan(select, value=value))[1])


@given(x=tensors(("float32", "float64")), select=selects())
def test_a_residual_that_is_not_contiguous_is_updated_all_the_same(x: np.ndarray, select: str) -> None:
    wide = np.zeros((x.size, 2), x.dtype)
    frame, _ = sw.compress(x.reshape(-1), plan(select), residual=wide[:, 0])
    assert same_bits(wide[:, 0].copy(), left_by_definition(work(x) + 0, frame))
    assert not wide[:, 1].any()


@given(x=tensors(), seed=st.integers(0, 99))
def test_a_dense_residual_joins_a_sparse_input_at_its_entries(x: np.ndarray, seed: int) -> None:
    sparse = sw.decode(sw.encode(x, "topk(50%)"))
    residual = make("normal", x.size, x.dtype.name, seed).reshape(x.shape)
    total = work(residual)
    total[sparse.indices] = total[sparse.indices] + sparse.work_values
    frame, _ = sw.compress(sparse, plan("nonzero", value="qsgd"), residual=residual)
    assert np.array_equal(sw.decode(frame).indices, sparse.indices)
    assert same_bits(residual, left_by_definition(total, frame).astype(x.dtype).reshape(x.shape))


# --- what is not finite ------------------------------------------------------------------------------------------


@every_value
@given(x=tensors(), select=st.sampled_from(SELECTS), bad=st.sampled_from([np.nan, np.inf, -np.inf]), data=st.data())
def test_what_is_non_finite_reaches_the_receivers_and_the_residual_stays_as_it_was(
    value: str, x: np.ndarray, select: str, bad: float, data: st.DataObject
) -> None:
    """But for a selection of nothing, which sends nothing at all."""
    assume(x.size)
    x.reshape(-1)[data.draw(st.integers(0, x.size - 1))] = bad
    residual, s = make("normal", x.size, x.dtype.name).reshape(x.shape), plan(select, value=value)
    before = residual.copy()
    for frame in (sw.compress(x, s, residual=residual)[0], sw.encode(x, s)):
        seen = sw.decode(frame).work_values
        assert not seen.size if sw.scheme(s).select.takes_nothing else not np.isfinite(seen).all()
    assert same_bits(residual, before)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("x", [np.ones((1,) * 33, np.float32), np.ones(1, np.float32)])
def test_an_error_leaves_the_residual_as_it_was(x: np.ndarray) -> None:
    s = "topk(100%)" if x.ndim > 1 else "topk(100%) | values=failing"
    residual = np.full(1, 0.1, np.float32)
    with pytest.raises((InputError, ZeroDivisionError)):
        sw.compress(x, s, residual=residual)
    assert same_bits(residual, np.full(1, 0.1, np.float32))


@pytest.mark.parametrize("x", [np.ones(4), sw.Sparse([1], [1.0], (4,))])
def test_a_residual_needs_a_memory_that_keeps_it(x: object) -> None:
    with pytest.raises(InputError, match="memory=none keeps no residual"):
        sw.compress(x, "nonzero | memory=none", residual=np.zeros(4))


def test_a_sparse_input_that_is_not_finite_spares_a_sparse_residual() -> None:
    x, residual = sw.Sparse([1, 2], [np.inf, 1.0], (4,)), sw.Sparse([0, 1], [0.25, 0.5], (4,))
    frame, left = sw.compress(x, "nonzero | values=raw", residual=residual)
    assert not np.isfinite(sw.decode(frame).values).all()
    assert same_bits(left.to_dense(), residual.to_dense())


@given(x=tensors(("float32", "float64")), seed=st.integers(0, 99))
def test_a_sparse_residual_is_a_dense_one(x: np.ndarray, seed: int) -> None:
    """It takes part at the entries of the input, and the rest of it waits."""
    sparse = sw.decode(sw.encode(x, "topk(50%) | values=raw"))
    dense = make("mostly_zero", x.size, x.dtype.name, seed)
    kept = sw.decode(sw.encode(dense.reshape(x.shape), "nonzero | values=raw"))
    frame, left = sw.compress(sparse, plan("nonzero", value="qsgd"), residual=kept)
    assert frame == sw.compress(sparse, plan("nonzero", value="qsgd"), residual=dense)[0]
    assert np.array_equal(left.to_dense().reshape(-1), dense)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_sum_that_overflows_does_not_poison_the_residual(dtype: str, backend: str) -> None:
    x = np.array([np.finfo(dtype).max, 1.0], dtype)
    residual = x.copy()
    with using(backend):
        sw.compress(x, "topk(k=1)", residual=residual)
    assert np.isfinite(residual).all()


# --- determinism -------------------------------------------------------------------------------------------------


@every_pair
@few_examples
@given(x=tensors(), select=selects(), seed=st.integers(0, 99))
def test_both_backends_make_the_same_bytes_and_read_each_others(
    index: str, value: str, x: np.ndarray, select: str, seed: int
) -> None:
    frames, decoded = [], []
    for backend in BACKENDS:
        with using(backend):
            frames.append(sw.encode(x, plan(select, index, value), seed=seed))
    for backend in BACKENDS:
        with using(backend):
            decoded.append(sw.decode(frames[0]))
    assert len(set(frames)) == 1
    assert len({(sp.indices.tobytes(), sp.values.tobytes(), sp.shape) for sp in decoded}) == 1


@given(step=seeds, name=st.text(max_size=20), seed=seeds, rank=st.integers(0, 2**20))
def test_seed_step_name_and_rank_decide_everything_random(step: int, name: str, seed: int, rank: int) -> None:
    x = make("normal", 65, "float32")
    for select in ("randomk(50%)", "threshold(ratio=20%)", "topk(30%)"):
        frames = [
            sw.encode(x, plan(select, value="qsgd"), step=step, name=name, seed=seed, rank=rank) for _ in range(2)
        ]
        assert frames[0] == frames[1]


@pytest.mark.parametrize("change", [{"step": 1}, {"name": "v"}, {"seed": 1}, {"rank": 1}])
def test_each_of_them_changes_qsgds_roundings(change: dict[str, object]) -> None:
    x = make("normal", 1025, "float32")
    facts = {"step": 0, "name": "w", "seed": 0, "rank": 0}
    assert sw.encode(x, "values=qsgd", **facts) != sw.encode(x, "values=qsgd", **{**facts, **change})


@pytest.mark.parametrize(("values", "tolerance"), [("qsgd(4)", 0.01), ("ternary(clip=0)", 0.06), ("ternary", 0.06)])
def test_stochastic_rounding_is_right_on_average(values: str, tolerance: float) -> None:
    x = np.array([0.3, -0.71, 1.0, 0.05], np.float32)
    frames = [sw.encode(x, f"topk(100%) | values={values}", step=step) for step in range(600)]
    assert np.allclose(np.mean([sw.decode(frame).values for frame in frames], axis=0), x, atol=tolerance)


def test_terngrad_clips_what_is_far_from_the_rest() -> None:
    x = np.append(np.full(99, 0.1), 5.0).astype(np.float32)
    limit = 2.5 * np.sqrt(np.mean(np.square(x, dtype="f8")))
    sent = sw.decode(sw.encode(x, "topk(100%) | values=ternary")).to_dense()
    assert set(np.round(sent, 4)) == {0.0, np.round(np.float32(limit), 4)} and sent[99] > 0
    assert sw.decode(sw.encode(x, "topk(100%) | values=ternary(clip=0)")).to_dense()[99] == 5.0
