"""The laws of a communicator, all by name in `LAWS`; here are those of messages, parts of the ranks, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from comm_laws_bytes import (
    a_payload_for_every_rank_is_due,
    any_buffer_can_be_gathered,
    any_buffer_can_be_swapped,
    channels_remember_their_own_sizes,
    every_rank_gets_what_each_has_for_it,
    gathered,
    one_large_step_is_not_paid_for_ever,
    payload,
    similar_sizes_need_one_collective,
    similar_sizes_of_every_pair_need_one_collective_and_little_padding,
    uneven_empty_and_growing_payloads_keep_order_and_bytes,
)
from comm_laws_sums import (
    an_array_is_reduced_in_its_own_memory,
    in_place_counts_as_any_reduction,
    integers_and_bits_are_combined_exactly,
    reduce_keeps_the_shape_and_leaves_its_input_alone,
    sums_have_the_same_bits_on_every_rank,
    sums_of_bfloat16_move_two_bytes_a_number,
    what_some_engine_cannot_carry_is_refused_by_all,
)

from sparsewire.comm import Communicator
from sparsewire.errors import CommError, CommMismatch, PeerFailed
from sparsewire.exchange.reduce_scatter.routes import shift


def broadcast_brings_the_roots_bytes(comm: Communicator) -> None:
    for root in (0, comm.size - 1):
        for length in (0, 504, 505, 100_000):
            expected = payload(root, 1, length)
            assert comm.broadcast(expected if comm.rank == root else None, root) == expected
            assert comm.broadcast(payload(comm.rank, 1, length), root) == expected


def messages_arrive_in_order(comm: Communicator) -> None:
    """Rank 0 and each other rank exchange messages of several sizes, both ways."""
    lengths = (0, 10, 504, 505, 100_000)
    peers = range(1, comm.size) if comm.rank == 0 else [0]
    for peer in peers:
        for step, length in enumerate(lengths):
            if comm.rank == 0:
                comm.send(payload(peer, step, length), peer, tag=peer)
                assert comm.recv(peer, tag=7) == payload(peer, step, length)[::-1]
            else:
                comm.send(comm.recv(0, tag=comm.rank)[::-1], 0, tag=7)


def a_ring_of_messages_moves_on_whatever_its_hop(comm: Communicator) -> None:
    """Larger than engines buffer, so that sends wait for their receivers."""
    for hop in range(1, comm.size):
        found = shift(comm, payload(comm.rank, hop, 300_000), hop)
        assert found == payload((comm.rank - hop) % comm.size, hop, 300_000)


def no_rank_leaves_a_barrier_before_the_last_arrives(comm: Communicator) -> None:
    time.sleep(0.03 * comm.rank)
    arrived = time.monotonic()
    comm.barrier()
    left = time.monotonic()
    parts = comm.all_gather(np.array([arrived, left]), "barrier")
    times = np.array([np.frombuffer(part) for part in parts])
    assert times[:, 0].max() <= times[:, 1].min()


def a_part_of_the_ranks_talks_among_itself(comm: Communicator) -> None:
    """In rank order, while the other parts talk about something else; a part can be split again."""
    halves, whole = comm.split(comm.rank % 2), comm.split(7)
    mine = list(range(comm.rank % 2, comm.size, 2))
    assert (halves.size, mine[halves.rank]) == (len(mine), comm.rank)
    assert (whole.size, whole.rank) == (comm.size, comm.rank)
    for step in range(3 if comm.rank % 2 else 2):
        assert gathered(halves, payload(comm.rank, step, 700), "halves") == [payload(r, step, 700) for r in mine]
    assert halves.all_reduce(np.array([comm.rank])).tolist() == [sum(mine)]
    assert halves.broadcast(payload(comm.rank, 9, 9), halves.size - 1) == payload(mine[-1], 9, 9)
    alone = halves.split(halves.rank)
    alone.barrier()
    assert alone.all_reduce(np.array([comm.rank])).tolist() == [comm.rank]
    comm.barrier()


def the_traffic_of_parts_counts_in_the_whole(comm: Communicator) -> None:
    before = comm.traffic()
    part = comm.split(comm.rank % 2)
    alone = part.split(comm.rank)
    middle, own = comm.traffic(), comm.bytes_sent
    assert middle.bytes_sent > before.bytes_sent
    part.all_reduce(np.zeros(1000, np.float32))
    alone.all_reduce(np.zeros(500, np.float32))
    after = comm.traffic()
    assert after.collectives - middle.collectives == 2
    assert (after.bytes_sent - middle.bytes_sent, after.bytes_received - middle.bytes_received) == (6000, 6000)
    assert comm.bytes_sent == own
    part.close()
    assert comm.traffic() == after
    with pytest.raises(CommError, match="closed"):
        alone.barrier()
    comm.barrier()


def different_channels_are_a_mismatch(comm: Communicator) -> None:
    if comm.size == 1:
        return
    channel = "left" if comm.rank == 0 else "right"
    with pytest.raises((CommMismatch, PeerFailed), match="all_gather"):
        comm.all_gather(b"x", channel)
    with pytest.raises((CommMismatch, PeerFailed), match="all_to_all"):
        comm.all_to_all([b"x"] * comm.size, channel)


def a_closed_communicator_refuses(comm: Communicator) -> None:
    part = comm.split(0)
    comm.barrier()
    with comm:
        pass
    swap = lambda: comm.all_to_all([b""] * comm.size)  # noqa: E731
    for call in (comm.barrier, lambda: comm.all_gather(b""), swap, lambda: comm.broadcast(b""), part.barrier):
        with pytest.raises(CommError, match="closed"):
            call()


LAWS: dict[str, Callable[[Communicator], None]] = {
    law.__name__: law
    for law in (
        uneven_empty_and_growing_payloads_keep_order_and_bytes,
        any_buffer_can_be_gathered,
        similar_sizes_need_one_collective,
        channels_remember_their_own_sizes,
        one_large_step_is_not_paid_for_ever,
        every_rank_gets_what_each_has_for_it,
        any_buffer_can_be_swapped,
        similar_sizes_of_every_pair_need_one_collective_and_little_padding,
        a_payload_for_every_rank_is_due,
        sums_have_the_same_bits_on_every_rank,
        sums_of_bfloat16_move_two_bytes_a_number,
        integers_and_bits_are_combined_exactly,
        reduce_keeps_the_shape_and_leaves_its_input_alone,
        an_array_is_reduced_in_its_own_memory,
        in_place_counts_as_any_reduction,
        what_some_engine_cannot_carry_is_refused_by_all,
        broadcast_brings_the_roots_bytes,
        messages_arrive_in_order,
        a_ring_of_messages_moves_on_whatever_its_hop,
        no_rank_leaves_a_barrier_before_the_last_arrives,
        a_part_of_the_ranks_talks_among_itself,
        the_traffic_of_parts_counts_in_the_whole,
        different_channels_are_a_mismatch,
        a_closed_communicator_refuses,
    )
}
