"""Threads as ranks: who fails, leaves or never comes is named and keeps nobody waiting; messages keep their order."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import CommArgumentError, CommMismatch, CommTimeout, PeerFailed


class Broken(Exception):
    pass


@pytest.mark.parametrize("wait", ["barrier", "all_gather", "all_to_all", "recv"])
def test_a_rank_that_raises_ends_the_others_and_its_error_comes_out(wait: str) -> None:
    seen: list[str] = []

    def fn(comm: Communicator) -> None:
        if comm.rank == 1:
            raise Broken("my own")
        try:
            {
                "barrier": comm.barrier,
                "all_gather": lambda: comm.all_gather(b""),
                "all_to_all": lambda: comm.all_to_all([b""] * 3),
                "recv": lambda: comm.recv(1),
            }[wait]()
        except PeerFailed as error:
            seen.append(str(error))
            raise

    begin = time.monotonic()
    with pytest.raises(Broken, match="my own") as caught:
        run_ranks(3, fn)
    assert caught.value.__notes__ == ["raised by rank 1"]
    assert len(seen) == 2
    assert all(wait in text and "rank 1 raised Broken" in text for text in seen)
    assert time.monotonic() - begin < 30


def test_a_rank_that_raises_ends_those_that_wait_in_a_part() -> None:
    """Also where it is in another part than they."""

    def fn(comm: Communicator) -> None:
        part = comm.split(comm.rank // 2)
        if comm.rank == 3:
            raise Broken("my own")
        for _ in range(1 + comm.rank):
            part.split(0).barrier()
        comm.recv(3) if comm.rank == 0 else part.recv(1 - part.rank)

    begin = time.monotonic()
    with pytest.raises(Broken, match="my own"):
        run_ranks(4, fn)
    assert time.monotonic() - begin < 30


def test_a_rank_that_returns_early_is_noticed_in_a_part() -> None:
    def fn(comm: Communicator) -> None:
        part = comm.split(comm.rank // 2)
        if comm.rank != 3:
            part.barrier()

    with pytest.raises(CommMismatch, match=r"barrier\(\): ranks \[1\] ended without it"):
        run_ranks(4, fn)


@pytest.mark.parametrize("stuck", [[1], [0, 2]])
def test_a_rank_that_never_arrives_is_named(stuck: list[int]) -> None:
    release = threading.Event()

    def fn(comm: Communicator) -> None:
        if comm.rank in stuck:
            release.wait(20)
        try:
            comm.all_gather(b"x")
        finally:
            release.set()

    begin = time.monotonic()
    with pytest.raises(CommTimeout) as caught:
        run_ranks(4, fn, timeout=0.3)
    assert f"ranks {stuck} did not arrive within 0.3 s" in str(caught.value)
    assert "all_gather" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert 0.3 <= time.monotonic() - begin < 15


def test_a_receive_that_nobody_answers_times_out() -> None:
    def fn(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.recv(1, tag=4)
        comm.barrier()

    with pytest.raises(CommTimeout, match=r"(recv\(tag=4\): ranks \[1\]|barrier\(\): ranks \[0\])"):
        run_ranks(2, fn, timeout=0.2)


def test_a_rank_that_returns_early_is_noticed_at_once() -> None:
    begin = time.monotonic()
    with pytest.raises(CommMismatch, match=r"barrier\(\): ranks \[2\] ended without it"):
        run_ranks(3, lambda comm: comm.barrier() if comm.rank != 2 else None)
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda comm: comm.all_gather(b""), lambda comm: comm.barrier()),
        (lambda comm: comm.all_gather(b""), lambda comm: comm.all_reduce(np.zeros(1))),
        (lambda comm: comm.all_gather(b""), lambda comm: comm.all_to_all([b"", b""])),
        (lambda comm: comm.all_reduce(np.zeros(2)), lambda comm: comm.all_reduce(np.zeros(1))),
        (lambda comm: comm.all_reduce(np.zeros(1)), lambda comm: comm.all_reduce(np.zeros(1), "max")),
        (lambda comm: comm.broadcast(b"", 0), lambda comm: comm.broadcast(b"", 1)),
    ],
)
def test_mismatched_collectives_are_an_error_on_threads(one, other) -> None:
    with pytest.raises(CommMismatch, match=r"rank \d called .+, ranks \[\d\] .+"):
        run_ranks(2, lambda comm: (one if comm.rank else other)(comm))


def test_results_come_in_rank_order() -> None:
    ended = [threading.Event() for _ in range(4)]
    ended[3].set()

    def fn(comm: Communicator) -> tuple[int, str]:
        """The last rank ends first."""
        assert ended[comm.rank + 1].wait(60)
        ended[comm.rank].set()
        return comm.rank, repr(comm)

    assert run_ranks(3, fn) == [(rank, f"ThreadCommunicator(rank={rank}, size=3)") for rank in range(3)]


def test_no_ranks_are_refused() -> None:
    with pytest.raises(CommArgumentError, match="at least one rank"):
        run_ranks(0, lambda comm: None)


def test_a_message_is_found_by_its_tag() -> None:
    def fn(comm: Communicator) -> list[bytes]:
        for tag in (1, 2, 1):
            if comm.rank == 0:
                comm.send(b"%d" % tag, 1, tag)
        return [comm.recv(0, tag) for tag in (2, 1, 1)] if comm.rank == 1 else []

    assert run_ranks(2, fn)[1] == [b"2", b"1", b"1"]


def test_a_sender_may_reuse_its_buffer() -> None:
    def fn(comm: Communicator) -> list[bytes]:
        buffer = bytearray(b"before")
        parts = comm.all_gather(buffer)
        buffer[:] = b"after!"
        comm.barrier()
        return [bytes(part) for part in parts]

    assert run_ranks(3, fn) == [[b"before"] * 3] * 3


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=5))
@settings(max_examples=30, deadline=None)
def test_threads_sum_in_rank_order(values: list[float]) -> None:
    arrays = [np.array([value], np.float32) for value in values]
    with np.errstate(over="ignore"):
        expected = arrays[0]
        for array in arrays[1:]:
            expected = expected + array

    def fn(comm: Communicator) -> bytes:
        with np.errstate(over="ignore"):
            return comm.all_reduce(arrays[comm.rank]).tobytes()

    assert set(run_ranks(len(values), fn)) == {expected.tobytes()}
