"""`exchange.mean` between threads: conservation, the same bits everywhere, and what happens when a peer misbehaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exchange_damage import DAMAGE
from failing import errors_of
from strategies import DTYPES, PAIRS, SELECTS, make, same_bits, work

import sparsewire as sw
from sparsewire.comm import Communicator, ThreadCommunicator, run_ranks
from sparsewire.errors import InputError, PeerError
from sparsewire.exchange import mean

SIZE, STEPS = 3, 4
KINDS = ["normal", "clustered", "magnitudes"]
# Every index codec with plain values, every value codec with the default indices; test_laws.py has all pairs.
CODECS = sorted({(index, "raw") for index, _ in PAIRS} | {("best", value) for _, value in PAIRS})
# Each of them with every fourth selection, each selection with every fourth of them.
ROWS = [(select, *codecs) for at, codecs in enumerate(CODECS) for select in SELECTS[at % 4 :: 4]]


def gradient(comm: Communicator, step: int, numel: int = 257, dtype: str = "float32") -> np.ndarray:
    return make(KINDS[comm.rank % 3], numel, dtype, seed=10 * step + comm.rank)


def total_of(comm: Communicator, array: np.ndarray) -> np.ndarray:
    parts = [np.frombuffer(part, array.dtype) for part in comm.all_gather(array, "total")]
    return np.sum(np.array(parts, np.float64), axis=0)


def assert_same_on_all(comm: Communicator, array: np.ndarray) -> None:
    assert len({bytes(part) for part in comm.all_gather(array.tobytes(), "same")}) == 1


def conserve(comm: Communicator, s: str, dtype: str) -> None:
    """Several steps with a residual, each checked against the two laws."""
    residual = np.zeros(257, work(np.empty(0, DTYPES[dtype])).dtype)
    for step in range(STEPS):
        x = gradient(comm, step, dtype=dtype)
        compensated = residual + work(x)
        average, sent = mean(x, s, comm, step=step, name="w", residual=residual)
        assert (average.shape, average.dtype) == (sent.shape, sent.dtype) == (x.shape, x.dtype)
        assert same_bits(residual, compensated - work(sent))
        assert_same_on_all(comm, average)
        rounding = {"float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 1e-5)
        total = total_of(comm, work(sent))
        scale = np.abs(total).max() + 1e-30
        np.testing.assert_allclose(SIZE * work(average), total, rtol=rounding, atol=rounding * scale)


@pytest.mark.parametrize(("select", "index", "value"), ROWS)
def test_what_ranks_count_as_sent_is_the_mean_and_the_rest_is_kept(select: str, index: str, value: str) -> None:
    s = f"{select} | indices={index} | values={value} | memory=residual"
    run_ranks(SIZE, lambda comm: conserve(comm, s, "float32"), timeout=20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("s", ["topk(10%) | values=qsgd(4)", "randomk(20%) | values=half", "threshold(ratio=10%)"])
def test_conservation_holds_in_every_number_type(s: str, dtype: str) -> None:
    run_ranks(SIZE, lambda comm: conserve(comm, s, dtype), timeout=20)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_with_everything_sent_the_mean_is_the_mean(size: int) -> None:
    def fn(comm: Communicator) -> None:
        x = gradient(comm, 0)
        average, sent = mean(x, "topk(1.0) | indices=raw | values=raw | memory=none", comm)
        assert same_bits(sent, x)
        np.testing.assert_allclose(average, total_of(comm, x) / size, rtol=1e-5, atol=1e-6)

    run_ranks(size, fn)


def test_ranks_draw_the_same_or_different_entries_as_asked() -> None:
    def supports(comm: Communicator, s: str) -> set[bytes]:
        sent = mean(gradient(comm, 0) + 9, s, comm, step=3, name="w")[1]
        return {bytes(part) for part in comm.all_gather(np.flatnonzero(sent))}

    assert all(len(found) == 1 for found in run_ranks(SIZE, lambda comm: supports(comm, "randomk(k=9)")))
    assert all(len(found) == 3 for found in run_ranks(SIZE, lambda comm: supports(comm, "randomk(k=9, shared=false)")))


def test_sparse_tensors_meet_at_the_union_of_their_entries() -> None:
    def fn(comm: Communicator) -> None:
        x = sw.Sparse(np.arange(3) * 10**11 + comm.rank // 2, np.ones(3, np.float32), (10**12,))
        average, sent = mean(x, "nonzero", comm)
        assert same_bits(sent.values, x.values)
        expected = {10**11 * i + r: share / 3 for i in range(3) for r, share in ((0, 2), (1, 1))}
        assert average.indices.tolist() == sorted(expected)
        np.testing.assert_allclose(average.values, [expected[i] for i in sorted(expected)], rtol=1e-6)

    run_ranks(SIZE, fn)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("s", ["topk(1%)", "randomk(1%)", "threshold(value=2)", "nonzero | values=qsgd", "topk(k=2)"])
def test_one_ranks_overflow_is_seen_by_all_and_touches_no_residual(s: str, bad: float) -> None:
    def fn(comm: Communicator) -> None:
        residual = np.zeros(257, np.float32)
        mean(gradient(comm, 0), s, comm, residual=residual)
        before, x = residual.copy(), gradient(comm, 1)
        if comm.rank == 1:
            x[77] = bad
        assert not np.isfinite(mean(x, s, comm, step=1, residual=residual)[0]).all()
        assert same_bits(residual, before)
        assert np.isfinite(mean(gradient(comm, 2), s, comm, step=2, residual=residual)[0]).all()
        assert not same_bits(residual, before)

    with np.errstate(invalid="ignore"):
        run_ranks(SIZE, fn)


def test_the_engine_counts_what_travels() -> None:
    def fn(comm: Communicator) -> None:
        x = gradient(comm, 0, 100_000)
        mean(x, "topk(1%) | indices=rice | values=qsgd(7)", comm)
        assert comm.collectives == 1
        assert 1000 < comm.bytes_sent < 1000 * (2 + 1) + 200
        assert comm.bytes_received > comm.bytes_sent

    run_ranks(SIZE, fn)


# --- peers that misbehave ---


@pytest.mark.parametrize("damage", DAMAGE)
def test_bad_bytes_are_an_error_on_every_rank_that_names_the_peer(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = ThreadCommunicator.all_gather

    def damaged(comm: ThreadCommunicator, data: Any, channel: str = "") -> list[memoryview]:
        return gather(comm, DAMAGE[damage](bytes(data)) if comm.rank == 1 else data, channel)

    monkeypatch.setattr(ThreadCommunicator, "all_gather", damaged)
    residuals = [np.full(257, 0.5, np.float32) for _ in range(SIZE)]
    errors = errors_of(SIZE, lambda comm: mean(gradient(comm, 0), "topk(9%)", comm, residual=residuals[comm.rank]))
    assert all(isinstance(error, PeerError) and str(error).startswith("rank 1: ") for error in errors), errors
    assert all((residual == 0.5).all() for residual in residuals)


def test_tensors_that_differ_between_ranks_are_an_error_on_every_rank() -> None:
    errors = errors_of(SIZE, lambda comm: mean(np.ones(10 + comm.rank // 2, np.float32), "nonzero", comm))
    assert all(isinstance(error, PeerError) for error in errors), errors


@pytest.mark.parametrize("residual", [np.zeros(3, np.float32), np.zeros(257), sw.Sparse([0], [1.0], (257,))])
def test_a_residual_that_does_not_fit_is_refused(residual: Any) -> None:
    with pytest.raises(InputError, match="residual"):
        run_ranks(1, lambda comm: mean(gradient(comm, 0), "topk(9%)", comm, residual=residual))


def test_a_sparse_residual_is_refused_as_it_could_not_be_updated() -> None:
    x = sw.Sparse([1], np.ones(1, np.float32), (5,))
    with pytest.raises(InputError, match="dense array"):
        run_ranks(1, lambda comm: mean(x, "nonzero", comm, residual=x))


def test_a_sparse_tensor_takes_a_dense_residual_at_its_entries() -> None:
    x, residual = sw.Sparse([1, 3], np.ones(2, np.float32), (5,)), np.full(5, 0.5, np.float32)
    average, _ = run_ranks(1, lambda comm: mean(x, "nonzero | values=raw", comm, residual=residual))[0]
    assert average.values.tolist() == [1.5, 1.5]
    assert residual.tolist() == [0.5, 0, 0.5, 0, 0.5]
