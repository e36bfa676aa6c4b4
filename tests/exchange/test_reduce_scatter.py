"""`exchange=reduce_scatter`: what travels does not grow with the ranks, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scatter_gradients import HEAD, ROUTES, every_route, gradient
from strategies import same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, ThreadCommunicator, run_ranks
from sparsewire.exchange import mean
from sparsewire.exchange.reduce_scatter.routes import shift
from sparsewire.frames.wire import unpack_message


def total(parts: list[np.ndarray]) -> np.ndarray:
    return np.sum(np.array(parts, np.float64), axis=0)


# --- what travels ---


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Coded entries that arrive on each rank, from other ranks."""
    tally: dict[int, int] = {}
    gather, swap, recv = ThreadCommunicator.all_gather, ThreadCommunicator.all_to_all, ThreadCommunicator.recv

    def count(comm: ThreadCommunicator, parts: list[Any]) -> None:
        found = sum(frame.count for part in parts for frame in unpack_message(part[HEAD:]))
        tally[comm.rank] = tally.get(comm.rank, 0) + found

    def counted(fn: Callable[..., list[memoryview]]) -> Callable[..., list[memoryview]]:
        def call(comm: ThreadCommunicator, *args: Any) -> list[memoryview]:
            parts = fn(comm, *args)
            count(comm, [part for rank, part in enumerate(parts) if rank != comm.rank])
            return parts

        return call

    def counted_recv(comm: ThreadCommunicator, *args: Any) -> bytes:
        message = recv(comm, *args)
        count(comm, [message])
        return message

    monkeypatch.setattr(ThreadCommunicator, "all_gather", counted(gather))
    monkeypatch.setattr(ThreadCommunicator, "all_to_all", counted(swap))
    monkeypatch.setattr(ThreadCommunicator, "recv", counted_recv)
    return tally


def average(comm: Communicator, s: str, numel: int, same: bool = False, steps: int = 1) -> tuple[int, int]:
    """(entries of the last mean, bytes in and out for it)."""
    residual, before = np.zeros(numel, np.float32), 0
    for step in range(steps):
        before = comm.bytes_sent + comm.bytes_received
        found, _ = mean(gradient(0 if same else comm.rank, numel, step), s, comm, step=step, residual=residual)
    return np.count_nonzero(found), comm.bytes_sent + comm.bytes_received - before


@pytest.mark.parametrize("size", [2, 3, 7, 16])
@pytest.mark.parametrize(("route", "most"), [("direct", 2.2), ("log", 4.2)])
def test_coded_entries_that_move_do_not_grow_with_the_ranks(
    route: str, most: float, size: int, received: dict[int, int]
) -> None:
    numel, k, steps = 30_000, 3_000, 2
    s = f"topk(k={k}) | indices=raw | values=raw | exchange=reduce_scatter(route={route})"
    kept = run_ranks(size, lambda comm: average(comm, s, numel, steps=steps)[0], timeout=30)
    assert max(received.values()) <= most * k * (size - 1) / size * steps
    assert 0.98 * k <= kept[0] <= 1.02 * k


@pytest.mark.parametrize(
    ("exchange", "least", "most", "same"),
    [
        ("reduce_scatter(route=direct)", 1.0, 1.3, False),
        ("reduce_scatter(route=direct)", 1.0, 1.3, True),
        ("reduce_scatter(route=log)", 1.0, 1.3, False),
        ("allgather", 3.9, 4.1, False),  # what it is for
    ],
)
def test_bytes_in_and_out_of_sixteen_ranks_against_four(exchange: str, least: float, most: float, same: bool) -> None:
    s = f"topk(k=8000) | indices=best | values=qsgd(7) | exchange={exchange}"
    few, many = (max(run_ranks(size, lambda comm: average(comm, s, 200_000, same)[1], timeout=60)) for size in (4, 16))
    assert least * few <= many <= most * few


def test_an_identical_support_is_kept_whole_also_in_a_crowded_slice() -> None:
    x = np.zeros(400, np.float32)
    x[5:45] = np.arange(1, 41)
    for route in ROUTES:
        s = f"topk(k=40) | values=raw | exchange=reduce_scatter(route={route})"
        for found, _ in run_ranks(4, lambda comm, s=s: mean(x, s, comm)):
            assert same_bits(found, x)


# --- nothing is lost ---


@pytest.mark.parametrize("codecs", ["values=qsgd(3)", "indices=bloom(0.2, p1) | values=half", "values=mean"])
@pytest.mark.parametrize("size", [2, 7])
@every_route
def test_residuals_and_means_hold_all_that_ever_came_in(route: str, size: int, codecs: str) -> None:
    s = f"topk(5%) | {codecs} | exchange=reduce_scatter(route={route})"

    def fn(comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
        residual, moved = np.zeros(300, np.float32), np.zeros(300)
        for step in range(8):
            moved += mean(gradient(comm.rank, 300, step), s, comm, step=step, residual=residual)[0]
        return residual, moved

    done = run_ranks(size, fn, timeout=30)
    put_in = total([gradient(rank, 300, step) for rank in range(size) for step in range(8)])
    moved = done[0][1]
    np.testing.assert_allclose(total([kept for kept, _ in done]) + size * moved, put_in, atol=1e-3)
    assert np.linalg.norm(moved) > 0.1 * np.linalg.norm(put_in) / size


@every_route
def test_with_all_entries_sent_the_mean_is_the_mean(route: str) -> None:
    for size in (1, 2, 3, 6, 7):
        parts = [gradient(rank, 50) for rank in range(size)]
        s = f"nonzero | values=raw | memory=none | exchange=reduce_scatter(route={route})"
        for found, _ in run_ranks(size, lambda comm, s=s, parts=parts: mean(parts[comm.rank], s, comm)):
            np.testing.assert_allclose(found, total(parts) / size, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("numel", [1, 3])
@every_route
def test_a_tensor_with_fewer_entries_than_ranks_gets_on(route: str, numel: int) -> None:
    """What is not yet delivered of a constant gradient stays bounded, on all ranks together."""
    s = f"topk(k=1) | values=raw | exchange=reduce_scatter(route={route})"

    def fn(comm: Communicator) -> np.ndarray:
        residual = np.zeros(numel, np.float32)
        for step in range(25):
            mean(np.full(numel, 1 + comm.rank % 2, np.float32), s, comm, step=step, residual=residual)
        return residual

    left = np.abs(total(run_ranks(5, fn, timeout=30)))
    assert left.max() <= 5 * 2 * (numel + 2)


def test_an_entry_takes_along_what_its_owner_has_there() -> None:
    parts = [np.array([1, 0, 5, 0], np.float32), np.array([3, 0, 0, 2], np.float32)]
    s = "topk(k=1) | values=raw | exchange=reduce_scatter"
    for found, _ in run_ranks(2, lambda comm: mean(parts[comm.rank], s, comm)):
        assert found.tolist() == [2, 0, 2.5, 0]


def test_what_an_owner_keeps_of_a_sparse_tensor_goes_when_any_rank_has_the_entry_again() -> None:
    """Rank 0 owns 0 and 1, and never has a gradient there itself."""

    def fn(comm: Communicator) -> tuple[list[list[float]], list[float]]:
        residual, means = np.zeros(4, np.float32), []
        for step, values in enumerate([[1, 3], [3, 1]]):
            x = sw.Sparse([0, 1][: 2 * comm.rank], np.array(values[: 2 * comm.rank], np.float32), (4,))
            found, _ = mean(x, "nonzero | values=raw | exchange=reduce_scatter", comm, step=step, residual=residual)
            means.append(found.to_dense().tolist())
        return means, residual.tolist()

    (means, owner), (_, other) = run_ranks(2, fn)
    assert means == [[0, 1.5, 0, 0], [2, 0, 0, 0]]
    assert owner == [0, 1, 0, 0]
    assert other == [0, 0, 0, 0]


# --- momentum ---


@every_route
def test_a_velocity_is_masked_where_what_was_sent_is_in_the_mean(route: str) -> None:
    """Rank 0 owns 0 … 3, of which rank 1 sends 0 and 1; rank 1 owns the others, of which rank 0 sends 6 and 7.

    Each owner keeps one. The entries 1 and 6 are dropped: neither who sent them nor who keeps them is masked.
    """
    parts = [np.array([4, 0.5, 0, 0, 0, 0, 5, 6], np.float32), np.array([6, 2, 0, 0, 0, 0, 0, 0], np.float32)]
    s = sw.scheme(f"topk(k=2) | values=raw | memory=dgc(momentum=0.5) | exchange=reduce_scatter(route={route})")

    def fn(comm: Communicator) -> dict[str, np.ndarray]:
        state = {name: np.zeros(8, np.float32) for name in ("velocity", "residual")}
        mean(parts[comm.rank], s, comm, residual=state)
        return state

    owner, other = run_ranks(2, fn)
    assert owner["velocity"].tolist() == [0, 0.5, 0, 0, 0, 0, 5, 0]
    assert other["velocity"].tolist() == [0, 2, 0, 0, 0, 0, 0, 0]
    assert owner["residual"].tolist() == [0, 2.5 + 0.25, 0, 0, 0, 0, 2.5, 0]
    assert other["residual"].tolist() == [0, 1, 0, 0, 0, 0, 5, 0]


# --- routes ---


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 9])
def test_a_shift_ends_though_every_send_waits_for_its_receiver(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    send, recv = ThreadCommunicator.send, ThreadCommunicator.recv

    def patient(comm: ThreadCommunicator, data: Any, peer: int, tag: int = 0) -> None:
        send(comm, data, peer, tag)
        recv(comm, peer, tag + 1)

    def answering(comm: ThreadCommunicator, peer: int, tag: int = 0) -> bytes:
        message = recv(comm, peer, tag)
        send(comm, b"", peer, tag + 1)
        return message

    monkeypatch.setattr(ThreadCommunicator, "send", patient)
    monkeypatch.setattr(ThreadCommunicator, "recv", answering)

    def fn(comm: Communicator) -> None:
        for hop in range(1, size):
            assert shift(comm, bytes([comm.rank]), hop) == bytes([(comm.rank - hop) % size])

    run_ranks(size, fn, timeout=10)


def test_the_preset_is_what_the_paper_has() -> None:
    plan = sw.scheme("spardl(ratio=0.1%)")
    spelled = "topk(0.1%) | indices=best | values=raw | memory=residual | exchange=reduce_scatter(route=log)"
    assert plan == sw.scheme(spelled) == sw.scheme(str(plan))
    with pytest.raises(sw.SchemeError, match="direct, log"):
        sw.scheme("topk(1%) | exchange=reduce_scatter(route=ring)")
