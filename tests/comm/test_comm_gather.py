"""An engine that has nothing but an equal-size gather is a whole communicator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from comm_laws import LAWS
from exchange_rows import ROWS

from sparsewire.comm import Communicator, ThreadCommunicator, base, run_ranks
from sparsewire.core.sparse import to_bfloat16
from sparsewire.errors import CommError, CommMismatch, CommTimeout
from sparsewire.exchange import mean


class GatherOnly(Communicator):
    """The least that an engine can be, over threads."""

    def __init__(self, comm: ThreadCommunicator) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm

    def _gather_equal(self, call: str, mine: Any, everyone: Any, members: Sequence[int]) -> None:
        assert (self.rank in members, everyone.size) == (True, len(members) * mine.size)
        self._comm._gather_equal(call, mine, everyone, members)


class GatherFromAll(GatherOnly):
    """An engine whose gather needs every rank."""

    def _gather_equal(self, call: str, mine: Any, everyone: Any, members: Sequence[int]) -> None:
        if len(members) < self.size:
            raise CommError(f"{call}: this engine gathers from all ranks only")
        super()._gather_equal(call, mine, everyone, members)


def run(ranks: int, fn: Callable[[Communicator], Any], engine: type[GatherOnly] = GatherOnly, **more: Any) -> list[Any]:
    return run_ranks(ranks, lambda comm: fn(engine(comm)), **more)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_an_engine_with_only_a_gather_keeps_the_law(law: str, ranks: int) -> None:
    run(ranks, LAWS[law], timeout=20)


@pytest.mark.parametrize("exchange", ROWS)
def test_every_exchange_has_the_bits_that_it_has_over_threads(exchange: str) -> None:
    def fn(comm: Communicator) -> bytes:
        x = np.random.default_rng(comm.rank).standard_normal(2_000).astype(np.float32)
        return mean(x, f"topk(10%) | exchange={exchange}", comm, name="w")[0].tobytes()

    assert run(3, fn) == run_ranks(3, fn)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_sums_are_in_rank_order_also_where_a_chunk_ends(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CHUNK", 3 * 8 * 100)

    def fn(comm: Communicator) -> bytes:
        x = np.random.default_rng(comm.rank).standard_normal(1_001) * 10.0 ** (np.arange(1_001) % 7)
        if dtype == "bfloat16":
            return comm.sum_bfloat16(to_bfloat16(x.astype(np.float32))).tobytes()
        return comm.all_reduce(x.astype(dtype)).tobytes()

    assert run(3, fn) == run_ranks(3, fn)


def test_a_chunk_bounds_what_a_sum_receives_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CHUNK", 2 * 4_000)

    def fn(comm: Communicator) -> tuple[int, int]:
        comm.all_reduce(np.zeros(2_500, np.float32))
        comm.broadcast(bytes(12_504))
        return comm.collectives, comm.bytes_sent

    # a slot of 512 bytes tells the length of what is broadcast
    assert run(2, fn) == [(3 + 1 + 3, 10_000 + 512 + 12_000)] * 2


def test_messages_that_cross_reach_both() -> None:
    def fn(comm: Communicator) -> list[bytes]:
        peer = 1 - comm.rank
        for tag in (1, 2, 1):
            comm.send(b"%d from %d" % (tag, comm.rank), peer, tag)
        return [comm.recv(peer, tag) for tag in (2, 1, 1)]

    assert run(2, fn) == [[b"%d from %d" % (tag, peer) for tag in (2, 1, 1)] for peer in (1, 0)]


def test_a_message_with_another_tag_waits_until_it_is_asked_for() -> None:
    def fn(comm: Communicator) -> list[bytes]:
        if comm.rank == 0:
            return [comm.send(b"%d" % tag, 1, tag) or b"" for tag in (1, -2, 1)]
        return [comm.recv(0, tag) for tag in (-2, 1, 1)]

    assert run(2, fn)[1] == [b"-2", b"1", b"1"]


def test_two_ranks_that_both_receive_are_told() -> None:
    def fn(comm: Communicator) -> None:
        with pytest.raises(CommMismatch, match=r"recv\(tag=7\): the other rank also waits to receive"):
            comm.recv(1 - comm.rank, 7)

    run(2, fn)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (lambda comm: comm.barrier(), lambda comm: comm.all_gather(b""), r"ranks \[\d\] called something else"),
        (lambda comm: comm.send(b"", 1), lambda comm: comm.barrier(), r"ranks \[\d\] called something else"),
        (lambda comm: comm.all_reduce(np.zeros(3)), lambda comm: comm.all_reduce(np.zeros(2)), "gather of 16 bytes"),
    ],
)
def test_ranks_that_call_different_collectives_are_told(one: Any, other: Any, told: str) -> None:
    with pytest.raises(CommMismatch, match=told):
        run(2, lambda comm: (other if comm.rank else one)(comm))


def test_a_root_that_names_another_root_is_told() -> None:
    """By whichever rank sees it first: each finds the root that it names itself to be of another mind."""

    def fn(comm: Communicator) -> None:
        comm.broadcast(b"x", root=0 if comm.rank == 2 else 2)

    with pytest.raises(CommMismatch, match=r"broadcast\(root=([02])\): rank \1 called it with another root"):
        run(3, fn)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("all_gather", lambda comm: comm.all_gather(b"")),
        ("all_to_all", lambda comm: comm.all_to_all([b""] * comm.size)),
        ("all_reduce", lambda comm: comm.all_reduce(np.zeros(1))),
        ("sum_bfloat16", lambda comm: comm.sum_bfloat16(np.zeros(1, np.uint16))),
        ("broadcast", lambda comm: comm.broadcast(b"")),
        ("recv", lambda comm: comm.recv(1 - comm.rank)),
    ],
)
def test_the_collective_that_a_rank_did_not_reach_is_named(name: str, call: Any) -> None:
    release = threading.Event()

    def fn(comm: Communicator) -> None:
        if comm.rank == 1:
            release.wait(20)
        try:
            call(comm)
        finally:
            release.set()

    with pytest.raises(CommTimeout, match=rf"^{name}: ranks \[1\] did not arrive within 0.2 s"):
        run(2, fn, timeout=0.2)


def test_an_engine_that_gathers_from_all_ranks_only_still_reduces_and_broadcasts() -> None:
    def fn(comm: Communicator) -> None:
        assert comm.all_reduce(np.array([comm.rank])).tolist() == [3]
        assert comm.broadcast(b"%d" % comm.rank, 1) == b"1"
        assert [bytes(part) for part in comm.all_gather(b"%d" % comm.rank)] == [b"0", b"1", b"2"]
        for refused in (lambda: comm.all_to_all([b""] * 3), lambda: comm.recv((comm.rank + 1) % 3)):
            with pytest.raises(CommError, match="this engine gathers from all ranks only"):
                refused()
        part = comm.split(comm.rank // 2)
        if part.size > 1:
            with pytest.raises(CommError, match="this engine gathers from all ranks only"):
                part.barrier()

    run(3, fn, GatherFromAll)


def test_an_engine_without_a_gather_is_refused() -> None:
    class Nothing(Communicator):
        pass

    with pytest.raises(TypeError, match="_gather_equal"):
        Nothing(0, 1)  # type: ignore[abstract]
