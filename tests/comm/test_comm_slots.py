"""Slots: uneven payloads over an engine that only moves even ones (here: threads)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsewire.comm import Communicator, run_ranks
from sparsewire.comm.slots import SlotAllToAll, SlotGather


def slotted(comm: Communicator) -> SlotGather:
    def gather(mine: np.ndarray, everyone: np.ndarray) -> None:
        everyone[:] = np.concatenate([np.frombuffer(part, np.uint8) for part in comm.all_gather(mine)])

    return SlotGather(range(comm.size), gather)


def swapping(comm: Communicator) -> SlotAllToAll:
    """Over an all_to_all that is told all lengths, and checks them."""

    def swap(mine: np.ndarray, to: list[int], found: np.ndarray, of: list[int]) -> None:
        parts = comm.all_to_all(np.split(mine, np.cumsum(to)[:-1]))
        assert [len(part) for part in parts] == of
        found[:] = np.frombuffer(b"".join(parts), np.uint8)

    return SlotAllToAll(comm.rank, comm.size, swap)


sizes = st.one_of(st.integers(0, 3), st.integers(490, 1_100), st.integers(0, 20_000))


@given(st.lists(st.tuples(sizes, sizes, st.sampled_from("ab")), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_slots_carry_any_sequence_of_sizes(steps: list[tuple[int, int, str]]) -> None:
    def fn(comm: Communicator) -> None:
        gather = slotted(comm)
        for step, (*lengths, channel) in enumerate(steps):
            expected = [np.random.default_rng([step, rank]).bytes(n) for rank, n in enumerate(lengths)]
            before = comm.collectives
            assert [bytes(part) for part in gather(expected[comm.rank], channel)] == expected
            assert comm.collectives - before <= 2

    run_ranks(2, fn, timeout=20)


@given(st.lists(st.tuples(st.lists(sizes, min_size=9, max_size=9), st.sampled_from("ab")), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_slots_of_pairs_carry_any_sequence_of_sizes(steps: list[tuple[list[int], str]]) -> None:
    def fn(comm: Communicator) -> None:
        swap = swapping(comm)
        for lengths, channel in steps:
            parts = [[bytes([9 * a + b]) * lengths[3 * a + b] for b in range(3)] for a in range(3)]
            before = comm.collectives
            assert [bytes(part) for part in swap(parts[comm.rank], channel)] == [row[comm.rank] for row in parts]
            assert comm.collectives - before <= 2

    run_ranks(3, fn, timeout=20)


@given(st.integers(0, 100_000), st.integers(0, 1_000) | st.integers(0, 100_000))
@example(0, 505)
@example(0, 544)
@settings(max_examples=50, deadline=None)
def test_slots_settle_at_little_padding_whatever_came_before(first: int, then: int) -> None:
    def fn(comm: Communicator) -> tuple[int, int]:
        gather = slotted(comm)
        for length in [first] + [then] * 9:
            gather(bytes(length))
        calls, sent = comm.collectives, comm.bytes_sent
        gather(bytes(then))
        return comm.collectives - calls, comm.bytes_sent - sent

    [(calls, sent)] = run_ranks(1, fn)
    assert calls == 1
    assert sent <= max(512, then * 8 / 7 + 8)


def test_channels_share_buffers_that_shrink_with_the_largest() -> None:
    def fn(comm: Communicator) -> list[int]:
        gather, held = slotted(comm), []
        for length in (10**6, 10**5):
            for _ in range(10):
                for channel in "abc":
                    gather(bytes(length), channel)
            held.append(gather.nbytes)
        return held

    for many, few in run_ranks(2, fn):
        assert many < 3 * 1.1 * 10**6
        assert few < 3 * 1.1 * 10**5


@pytest.mark.parametrize("length", [10, 5_000])
def test_slots_reuse_their_buffers(length: int) -> None:
    def fn(comm: Communicator) -> bool:
        gather = slotted(comm)
        gather(bytes(length))
        first, second = gather(bytes(length)), gather(bytes(length - 2))
        return np.shares_memory(np.frombuffer(first[0], np.uint8), np.frombuffer(second[0], np.uint8))

    assert run_ranks(2, fn) == [True, True]
