"""The laws of a communicator for bytes: what is gathered from all ranks, and what each has for each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sparsewire.comm import Communicator
from sparsewire.errors import CommArgumentError


def payload(rank: int, step: int, length: int) -> bytes:
    return np.random.default_rng([rank, step]).bytes(length)


def gathered(comm: Communicator, data: bytes, channel: str) -> list[bytes]:
    return [bytes(part) for part in comm.all_gather(data, channel)]


def uneven_empty_and_growing_payloads_keep_order_and_bytes(comm: Communicator) -> None:
    for step, length in enumerate([0, 1, 504, 505, 3_000, 3_100, 200_000, 7, 0, 40_000]):
        sizes = [length * (rank + 1) // comm.size for rank in range(comm.size)][:: 1 - 2 * (step % 2)]
        expected = [payload(rank, step, size) for rank, size in enumerate(sizes)]
        assert gathered(comm, expected[comm.rank], "uneven") == expected


def any_buffer_can_be_gathered(comm: Communicator) -> None:
    values = np.arange(6, dtype=np.float32)
    for data in (bytearray(b"abc"), memoryview(b"abcdef")[::2], values, values.reshape(2, 3).T, values[:0]):
        parts = comm.all_gather(data, "buffers")
        assert [bytes(part) for part in parts] == [memoryview(data).tobytes()] * comm.size
        assert all(part.readonly for part in parts)


def similar_sizes_need_one_collective(comm: Communicator) -> None:
    gathered(comm, payload(comm.rank, 0, 20_000), "steady")
    before = comm.collectives
    for step in range(20):
        gathered(comm, payload(comm.rank, step, 20_000 + 57 * (step * 7 % 20) - comm.rank), "steady")
    assert comm.collectives - before == 20


def channels_remember_their_own_sizes(comm: Communicator) -> None:
    for _ in range(2):
        before = comm.collectives
        for length in (50_000, 5_000, 500):
            assert len(gathered(comm, bytes(length), f"own {length}")[-1]) == length
    assert comm.collectives - before == 3


def one_large_step_is_not_paid_for_ever(comm: Communicator) -> None:
    gathered(comm, bytes(1_000_000), "falling")
    gathered(comm, bytes(10_000), "falling")
    before = comm.bytes_sent
    gathered(comm, bytes(10_000), "falling")
    assert 10_000 <= comm.bytes_sent - before <= 10_000 * 17 / 16 + 64 + 8


def swapped(comm: Communicator, step: int, length: Callable[[int, int], int], channel: str) -> None:
    """Rank a has length(a, b) bytes for rank b, and b gets these."""
    mine = [payload(peer, 100 * step + comm.rank, length(comm.rank, peer)) for peer in range(comm.size)]
    expected = [payload(comm.rank, 100 * step + peer, length(peer, comm.rank)) for peer in range(comm.size)]
    assert [bytes(part) for part in comm.all_to_all(mine, channel)] == expected


def every_rank_gets_what_each_has_for_it(comm: Communicator) -> None:
    for step, size in enumerate([0, 1, 504, 505, 3_000, 3_100, 60_000, 7, 0, 40_000]):
        swapped(comm, step, lambda a, b, size=size: size * (a + 2 * b + 1) // (3 * comm.size), "swap")
        swapped(comm, step, lambda a, b, size=size: size * (a == 0 and b == comm.size - 1), "one pair")


def any_buffer_can_be_swapped(comm: Communicator) -> None:
    values = np.arange(6, dtype=np.float32)
    for data in (bytearray(b"abc"), memoryview(b"abcdef")[::2], values.reshape(2, 3).T, values[:0]):
        parts = comm.all_to_all([data] * comm.size, "buffers")
        assert [bytes(part) for part in parts] == [memoryview(data).tobytes()] * comm.size
        assert all(part.readonly for part in parts)


def similar_sizes_of_every_pair_need_one_collective_and_little_padding(comm: Communicator) -> None:
    """Also where the pairs differ much; what a rank has for itself is no traffic."""
    for step in range(10):
        before = comm.collectives, comm.bytes_sent, comm.bytes_received
        jitter = 57 * (step * 7 % 20)
        swapped(comm, step, lambda a, b, jitter=jitter: 20_000 * (a + b) + jitter + 900_000 * (a == b), "steady")
        calls, sent, received = np.subtract((comm.collectives, comm.bytes_sent, comm.bytes_received), before)
        due = sum(20_000 * (comm.rank + peer) + jitter for peer in range(comm.size) if peer != comm.rank)
        assert received == due
        assert step == 0 or (calls == 1 and due <= sent <= due * 17 / 16 + 100 * comm.size)


def a_payload_for_every_rank_is_due(comm: Communicator) -> None:
    for number in (comm.size - 1, comm.size + 1):
        with pytest.raises(CommArgumentError, match="each of"):
            comm.all_to_all([b""] * number)
