"""Laws of memories, transforms and exchanges. What is registered has its row in `strategies`, and so every law here.

Every two of them meet in some row of each law (`pairwise`), not every three.
"""

from __future__ import annotations

import numpy as np
import pytest
from covering import pairwise
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, EXCHANGES, MEMORIES, TRANSFORMS, make, same_bits, selects, tensors, work

import sparsewire as sw
from sparsewire.codecs.contract import State
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError, PeerError
from sparsewire.exchange import mean

SIZE, STEPS, NUMEL = 3, 4, 258
every_memory = pytest.mark.parametrize("memory", MEMORIES)
every_transform = pytest.mark.parametrize("transform", TRANSFORMS)
WITHOUT_VALUE_CODEC = ("shared",)  # numbers that an engine sums
ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def fresh(s: Scheme, numel: int, dtype: str = "float32") -> State:
    kind = np.float64 if dtype == "float64" else np.float32
    return {buffer: np.zeros(numel, kind) for buffer in s.memory.buffers}


def given_as(state: State) -> object:
    """Buffers as `compress` and `mean` take them."""
    return state if len(state) > 1 else next(iter(state.values()))


def added(s: Scheme, state: dict[str, np.ndarray], mean: np.ndarray) -> np.ndarray:
    """What a memory puts into its residual besides what was not sent: of its velocity, or of the mean."""
    if s.memory.id == "dgc":
        return state["velocity"] * state["velocity"].dtype.type(s.memory.momentum)
    kept = s.memory.momentum if s.memory.id == "gain" else s.memory.kept_mean
    return mean * mean.dtype.type(kept)


def close(a: np.ndarray, b: np.ndarray, dtype: str, factor: float = 1.0, like: np.ndarray | None = None) -> None:
    """Within the rounding of the largest number, in b or in another array."""
    scale = float(max(np.abs(part).max(initial=0) for part in (b, b if like is None else like))) + 1e-30
    np.testing.assert_allclose(a, b, rtol=0, atol=factor * ROUNDING[dtype] * scale)


# --- transforms ---


@every_transform
@given(x=tensors(("float32", "float64")))
def test_a_transform_is_linear_and_orthonormal(transform: str, x: np.ndarray) -> None:
    t, flat = sw.scheme(f"nonzero | transform={transform}").transform.fitted(x.shape), work(x)
    coefficients = t.forward(flat)
    assert coefficients.size == t.size(flat.size) * t.width and coefficients.dtype == flat.dtype
    close(t.inverse(coefficients, flat.size), flat, x.dtype.name)
    twice = t.forward(flat * 2)
    close(twice, 2 * coefficients, x.dtype.name)
    norm = np.linalg.norm(flat.astype(np.longdouble))
    assert np.linalg.norm(coefficients.astype(np.longdouble)) == pytest.approx(norm, rel=1e-5)


@every_transform
@given(x=tensors(("float32", "float64")), select=selects())
def test_with_a_transform_what_is_left_is_the_input_less_what_was_decoded(
    transform: str, x: np.ndarray, select: str
) -> None:
    frame, left = sw.compress(x, f"{select} | transform={transform} | values=qsgd(6)")
    decoded = sw.decode(frame)
    assert decoded.to_dense().shape == left.shape == x.shape
    close(work(np.asarray(left)) + decoded.flat(), work(x), x.dtype.name)
    assert sw.inspect(frame)["k"] == decoded.count
    assert sw.inspect(frame)["width"] == decoded.width


def test_entries_are_selected_by_their_norm() -> None:
    x = np.array([[3, 3, 3], [0, 5, 0], [0, 0, 1]], np.float32)
    decoded = sw.decode(sw.encode(x, "topk(k=1) | transform=rows(width=3) | values=raw"))
    assert decoded.indices.tolist() == [0] and decoded.values.tolist() == [3, 3, 3]


def test_rows_cost_one_index_each() -> None:
    x = np.zeros((1000, 64), np.float32)
    x[::7] = make("normal", 143 * 64, "float32").reshape(143, 64)
    sizes = {
        transform: sw.inspect(sw.encode(x, f"nonzero | indices=rice | transform={transform}"))["sections"]["indices"]
        for transform in ("identity", "rows(width=64)")
    }
    assert 10 * sizes["rows(width=64)"] < sizes["identity"]


# --- memories ---


@every_memory
@every_transform
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64"]), select=selects())
def test_compensated_input_is_what_was_sent_and_what_is_kept(
    memory: str, transform: str, data: st.DataObject, dtype: str, select: str
) -> None:
    s = sw.scheme(f"{select} | transform={transform} | values=qsgd(5) | memory={memory}")
    state = fresh(s, 65, dtype)
    for step in range(3):
        x = make("magnitudes", 65, dtype, data.draw(st.integers(0, 99)))
        total = s.memory.total({name: kept.copy() for name, kept in state.items()}, x).copy()
        frame, _ = sw.compress(x, s, step=step, residual=given_as(state))
        sent = sw.decode(frame).flat()
        expected = total - sent + added(s, state, sent)
        if transform == "identity":
            close(state["residual"], expected, dtype, int(s.memory.id in ("gmc", "gain")))
        close(state["residual"], expected, dtype, 10)


@every_memory
def test_a_sparse_gradient_is_kept_as_a_dense_one_at_its_entries(memory: str) -> None:
    s = sw.scheme(f"nonzero | values=qsgd(5) | memory={memory}")
    dense, sparse = fresh(s, 60), fresh(s, 60)
    for step in range(3):
        rows = np.flatnonzero(np.random.default_rng(step).random(20) < 0.5)
        values = make("normal", 3 * rows.size, "float32", step)
        x = sw.Sparse(rows, values, (20, 3), width=3)
        frame, _ = sw.compress(x, s, step=step, residual=given_as(sparse))
        expected = sw.decode(frame)
        assert np.array_equal(expected.indices, rows)
        part = {name: kept.reshape(-1, 3)[rows].reshape(-1) for name, kept in dense.items()}
        sw.compress(values, "topk(100%) | values=qsgd(5) | memory=" + memory, step=step, residual=given_as(part))
        for name, kept in dense.items():
            kept.reshape(-1, 3)[rows] = part[name].reshape(-1, 3)
            assert np.array_equal(sparse[name], kept), name


def test_a_decayed_residual_forgets() -> None:
    residual = np.ones(4, np.float32)
    sw.compress(np.zeros(4, np.float32), "topk(k=0) | memory=residual(decay=0.5)", residual=residual)
    assert residual.tolist() == [0.5] * 4


def test_a_residual_does_not_go_with_coefficients() -> None:
    x = make("normal", 16, "float32")
    coefficients = sw.decode(sw.encode(x, "topk(k=2) | transform=haar | values=raw"))
    again = sw.decode(sw.encode(coefficients, "nonzero | transform=haar | values=raw"))
    assert np.array_equal(again.to_dense(), coefficients.to_dense())
    with pytest.raises(InputError, match="coefficients"):
        sw.compress(coefficients, "nonzero | transform=haar", residual=np.zeros(16, np.float32))
    with pytest.raises(InputError, match="coefficients of haar"):
        sw.encode(coefficients, "nonzero")


def test_several_buffers_are_given_by_name() -> None:
    x = make("normal", 9, "float32")
    _, state = sw.compress(x, "topk(k=2) | memory=told")
    assert set(state) == {"residual", "moved"}
    with pytest.raises(InputError, match="residual, moved"):
        sw.compress(x, "topk(k=2) | memory=told", residual=np.zeros(9, np.float32))


# --- exchanges ---


def gradient(comm: Communicator, step: int, dtype: str) -> np.ndarray:
    return make(["normal", "clustered", "magnitudes"][comm.rank % 3], NUMEL, dtype, seed=10 * step + comm.rank)


def total_of(comm: Communicator, array: np.ndarray) -> np.ndarray:
    parts = [np.frombuffer(part, array.dtype) for part in comm.all_gather(array, "total")]
    return np.sum(np.array(parts, np.float64), axis=0)


def conserve(comm: Communicator, s: Scheme, dtype: str) -> None:
    """Several steps, each checked against the two laws; every rank has the same bits."""
    state = fresh(s, NUMEL, dtype)
    moved = np.zeros(NUMEL)
    for step in range(STEPS):
        x = gradient(comm, step, dtype)
        total = s.memory.total(state, work(x)).copy()
        average, sent = mean(x, s, comm, step=step, name="w", residual=given_as(state) if state else None)
        if state:
            kept = state["residual"] - added(s, state, work(average))
            close(kept + work(sent), total, dtype, 20, like=work(sent))  # large where a rank keeps for others
        assert len({bytes(part) for part in comm.all_gather(average.tobytes(), "same")}) == 1
        close(comm.size * work(average), total_of(comm, work(sent)), dtype, 20)
        moved += work(average)
    if "moved" in state:
        close(state["moved"], moved, dtype, 10)


CODECS = ["indices=rice | values=qsgd(5)", "indices=bloom(0.1, p0) | values=half"]
MANY = ["nonzero", "topk(k=0)", "topk(100%)", "randomk(20%)", "threshold(value=0.7)"]


@pytest.mark.parametrize(
    ("exchange", "memory", "transform", "codecs"), pairwise(EXCHANGES, MEMORIES, TRANSFORMS, CODECS)
)
def test_both_laws_of_conservation_hold(exchange: str, memory: str, transform: str, codecs: str) -> None:
    s = sw.scheme(f"topk(9%) | transform={transform} | {codecs} | memory={memory} | exchange={exchange}")
    run_ranks(SIZE, lambda comm: conserve(comm, s, "float32"), timeout=20)


@pytest.mark.parametrize(("exchange", "size", "select"), pairwise(EXCHANGES, [1, 2, 4, 7], MANY))
def test_they_hold_for_every_number_of_ranks(exchange: str, size: int, select: str) -> None:
    run_ranks(size, lambda comm: conserve(comm, sw.scheme(f"{select} | exchange={exchange}"), "float32"), timeout=20)


@pytest.mark.parametrize(("exchange", "transform", "dtype"), pairwise(EXCHANGES, TRANSFORMS, [*DTYPES]))
def test_they_hold_in_every_number_type(exchange: str, transform: str, dtype: str) -> None:
    s = sw.scheme(f"topk(10%) | transform={transform} | values=raw | exchange={exchange}")
    run_ranks(SIZE, lambda comm: conserve(comm, s, dtype), timeout=20)


@pytest.mark.parametrize(("exchange", "memory", "bad"), pairwise(EXCHANGES, MEMORIES, [np.inf, np.nan]))
def test_one_ranks_overflow_is_seen_by_all_and_touches_no_buffer(exchange: str, memory: str, bad: float) -> None:
    s = sw.scheme(f"topk(5%) | memory={memory} | exchange={exchange}")

    def fn(comm: Communicator) -> None:
        state = fresh(s, NUMEL)
        mean(gradient(comm, 0, "float32"), s, comm, residual=given_as(state))
        before, x = {name: kept.copy() for name, kept in state.items()}, gradient(comm, 1, "float32")
        x[77] = bad if comm.rank == 1 else 0
        assert not np.isfinite(mean(x, s, comm, step=1, residual=given_as(state))[0]).all()
        assert all(same_bits(state[name], kept) for name, kept in before.items())
        assert np.isfinite(mean(gradient(comm, 2, "float32"), s, comm, step=2, residual=given_as(state))[0]).all()

    with np.errstate(invalid="ignore"):
        run_ranks(SIZE, fn)


@pytest.mark.parametrize(
    ("exchange", "fault"),
    [
        (exchange, fault)
        for exchange in EXCHANGES
        for fault in ("dtype", "residual", "encode")
        if fault != "encode" or exchange not in WITHOUT_VALUE_CODEC
    ],
)
@pytest.mark.usefixtures("failing")
def test_a_rank_that_cannot_take_part_keeps_nobody_waiting(exchange: str, fault: str) -> None:
    def fn(comm: Communicator) -> BaseException | None:
        x, values, residual = gradient(comm, 0, "float32"), "raw", np.zeros(NUMEL, np.float32)
        if comm.rank == 1:
            x = x.astype(np.int32) if fault == "dtype" else x
            residual = residual[:3] if fault == "residual" else residual
            values = "failing" if fault == "encode" else values
        try:
            mean(x, f"topk(9%) | values={values} | exchange={exchange}", comm, name="w", residual=residual)
        except Exception as error:
            return error
        finally:
            comm.barrier()
        return None

    errors = run_ranks(SIZE, fn, timeout=10)
    assert isinstance(errors[1], ZeroDivisionError if fault == "encode" else InputError)
    assert isinstance(errors[0], PeerError) and isinstance(errors[2], PeerError), errors


@pytest.mark.parametrize("exchange", ["allgather", "root"])
def test_sparse_tensors_of_rows_meet_at_the_union_of_their_rows(exchange: str) -> None:
    def fn(comm: Communicator) -> None:
        x = sw.Sparse(np.array([0, 3 + comm.rank]), np.ones(4, np.float32), (10, 2), width=2)
        average, sent = mean(x, f"nonzero | values=raw | exchange={exchange}", comm)
        assert same_bits(sent.values, x.values)
        assert average.width == 2 and average.indices.tolist() == [0, 3, 4, 5]
        np.testing.assert_allclose(average.values, np.repeat([1, 1 / 3, 1 / 3, 1 / 3], 2), rtol=1e-6)

    run_ranks(SIZE, fn)
