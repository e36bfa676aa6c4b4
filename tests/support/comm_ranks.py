"""The laws of a communicator, and the script that a gloo or MPI rank runs to try them.

    comm_ranks.py gloo OUT RANK SIZE STORE      one rank of a gloo group
    comm_ranks.py tensorflow OUT RANK SIZE PORTS   one rank of a TensorFlow cluster
    comm_ranks.py mpi OUT                       one rank, started by mpirun
    comm_ranks.py mpi-raise OUT                 the same, but rank 1 fails while the others wait

Each rank writes OUT/RANK.json: law -> "" or the traceback.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparsewire.comm import Communicator
from sparsewire.core.sparse import from_bfloat16, to_bfloat16
from sparsewire.errors import CommArgumentError, CommError, CommMismatch, CommTimeout, PeerFailed
from sparsewire.exchange.reduce_scatter.routes import shift

LIMIT = 1.0  # seconds that a group waits for a rank that never arrives


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


def sums_of_bfloat16_move_two_bytes_a_number(comm: Communicator) -> None:
    drawn = [np.random.default_rng(rank).standard_normal(5_001) for rank in range(comm.size)]
    parts = [to_bfloat16(numbers.astype(np.float32)) for numbers in drawn]
    before = comm.bytes_sent
    total = comm.sum_bfloat16(parts[comm.rank])
    assert comm.bytes_sent - before == 2 * 5_001
    assert len(set(gathered(comm, total.tobytes(), "halves"))) == 1
    numbers = [from_bfloat16(part) for part in parts]
    largest = comm.size * np.abs(numbers).max()
    np.testing.assert_allclose(from_bfloat16(total), np.sum(numbers, axis=0), rtol=0, atol=largest * comm.size / 256)
    one = to_bfloat16(np.array([comm.rank == 0, np.nan, comm.size], np.float32))
    seen = from_bfloat16(comm.sum_bfloat16(one))
    assert seen[0] == 1 and np.isnan(seen[1]) and seen[2] == comm.size**2
    assert comm.sum_bfloat16(one[:0]).size == 0


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


def sums_have_the_same_bits_on_every_rank(comm: Communicator) -> None:
    for dtype in (np.float32, np.float64):
        parts = [np.random.default_rng(rank).standard_normal(5_001).astype(dtype) for rank in range(comm.size)]
        total = comm.all_reduce(parts[comm.rank])
        assert total.dtype == dtype
        assert len(set(gathered(comm, total.tobytes(), "bits"))) == 1
        np.testing.assert_allclose(total, np.sum(parts, axis=0, dtype=np.float64), rtol=1e-4, atol=1e-5)


def integers_and_bits_are_combined_exactly(comm: Communicator) -> None:
    ranks = np.arange(comm.size)
    for dtype in (np.int8, np.int32, np.int64, np.uint8):
        mine = np.array([[100, comm.rank], [1 << comm.rank % 7, 3]], dtype)
        wrapped = np.array([100 * comm.size]).astype(dtype)[0]
        assert comm.all_reduce(mine)[0].tolist() == [wrapped, ranks.sum()]
        assert comm.all_reduce(mine, "max").tolist() == [[100, ranks[-1]], [(1 << ranks % 7).max(), 3]]
        assert comm.all_reduce(mine, "bor")[1].tolist() == [np.bitwise_or.reduce(1 << ranks % 7), 3]


def reduce_keeps_the_shape_and_leaves_its_input_alone(comm: Communicator) -> None:
    for shape in ((), (0,), (3, 0), (4, 2)):
        mine = np.ones(shape, np.float32)
        total = comm.all_reduce(mine)
        assert total.shape == shape
        assert (total == comm.size).all()
        total += 1
        assert (mine == 1).all()
    strided = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    assert (comm.all_reduce(strided) == comm.size * strided).all()


def an_array_is_reduced_in_its_own_memory(comm: Communicator) -> None:
    for size in (0, 1, 5_001, 200_003):
        parts = [np.random.default_rng([rank, size]).standard_normal(size, np.float32) for rank in range(comm.size)]
        expected, mine = comm.all_reduce(parts[comm.rank]), parts[comm.rank].copy()
        comm.all_reduce_in_place(mine)
        assert mine.tobytes() == expected.tobytes()
    bits = np.array([[1 << comm.rank % 7, 3]], np.uint8)
    comm.all_reduce_in_place(bits, "bor")
    assert bits.tolist() == [[np.bitwise_or.reduce(1 << np.arange(comm.size) % 7), 3]]
    wide, fixed = np.zeros((4, 4), np.float32)[:, ::2], np.zeros(4, np.float32)
    fixed.flags.writeable = False
    for unfit in (wide, fixed):
        with pytest.raises(CommArgumentError, match="contiguous"):
            comm.all_reduce_in_place(unfit)


def in_place_counts_as_any_reduction(comm: Communicator) -> None:
    counts = []
    for call in (comm.all_reduce, comm.all_reduce_in_place):
        before = np.array(comm.traffic())
        call(np.ones(3_000, np.float32))
        counts.append((np.array(comm.traffic()) - before).tolist())
    assert counts[0] == counts[1]


def what_some_engine_cannot_carry_is_refused_by_all(comm: Communicator) -> None:
    for dtype, op in (
        ("float16", "sum"),
        ("uint32", "sum"),
        (">f4", "sum"),
        ("float32", "bor"),
        ("int32", "mean"),
    ):
        with pytest.raises(CommArgumentError):
            comm.all_reduce(np.zeros(2, dtype), op)
    for peer in (-1, comm.size, comm.rank):
        with pytest.raises(CommArgumentError):
            comm.send(b"", peer)
        with pytest.raises(CommArgumentError):
            comm.recv(peer)
    with pytest.raises(CommArgumentError):
        comm.broadcast(b"", comm.size)
    with pytest.raises(CommArgumentError, match="split"):
        comm.split(-1)


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


def expect_timeout(comm: Communicator, swap: bool = False) -> None:
    begin = time.monotonic()
    with pytest.raises(CommTimeout, match="all_to_all" if swap else "all_gather"):
        comm.all_to_all([b"is anyone there?"] * comm.size) if swap else comm.all_gather(b"is anyone there?")
    assert LIMIT / 2 < time.monotonic() - begin < LIMIT + 15


def attempt(results: dict[str, str], name: str, law: Callable[[], None]) -> None:
    try:
        law()
        results[name] = ""
    except Exception:
        results[name] = traceback.format_exc()


def gloo(out: Path, rank: int, size: int, store: str) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    from sparsewire.comm import TorchCommunicator

    warnings.simplefilter("error")
    limit, short = timedelta(seconds=30), timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    results: dict[str, str] = {}
    comm = TorchCommunicator()
    staged = TorchCommunicator(dist.new_group(list(range(size))), device="cpu:0")  # the path of an accelerator
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))
        attempt(results, f"staged {name}", lambda law=law: law(staged))

    groups = [dist.new_group(list(range(size)), timeout=short) for _ in range(2)]
    if rank == 0:
        attempt(results, "timeout", lambda: expect_timeout(TorchCommunicator(groups[0])))
        attempt(results, "timeout of a swap", lambda: expect_timeout(TorchCommunicator(groups[1]), swap=True))
    comm = TorchCommunicator()
    comm.barrier()
    if rank == 0:
        attempt(results, "lost rank", lambda: expect_lost_peer(comm))
    (out / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)  # as a crash would: no goodbye to the group


def expect_lost_peer(comm: Communicator) -> None:
    with pytest.raises(CommError, match="all_gather"):
        for _ in range(100):
            comm.all_gather(b"still there?", "lost")


def tensorflow(out: Path, rank: int, size: int, ports: str) -> None:
    """At the end one of 2 ranks is late, or two of 3 are lost: after one failure TensorFlow ends all collectives."""
    workers = [f"127.0.0.1:{port}" for port in ports.split(",")]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})
    from sparsewire.comm import TensorFlowCommunicator

    results: dict[str, str] = {}
    comm, late = TensorFlowCommunicator(timeout=60), TensorFlowCommunicator(timeout=LIMIT if size == 2 else 60)
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))
    last = TensorFlowCommunicator()
    last.barrier()
    if rank == 0:
        attempt(results, "failure", lambda: (expect_timeout if size == 2 else expect_lost_peer)(late))
    elif size == 2:
        time.sleep(2 * LIMIT)
    (out / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)


def mpi(out: Path) -> None:
    from mpi4py import MPI

    from sparsewire.comm import MPICommunicator

    warnings.simplefilter("error")
    results: dict[str, str] = {}
    comm = MPICommunicator()
    for name, law in LAWS.items():
        attempt(results, name, lambda law=law: law(comm))

    late, impatient, swapping = MPICommunicator(), MPICommunicator(timeout=LIMIT), MPICommunicator(timeout=LIMIT)
    if late.rank != late.size - 1:
        attempt(results, "timeout", lambda: expect_timeout(impatient))
        attempt(results, "timeout of a swap", lambda: expect_timeout(swapping, swap=True))
    late.barrier()
    if late.rank == late.size - 1:
        impatient.all_gather(b"sorry")  # so that MPI can shut down in good order
        swapping.all_to_all([b"sorry"] * late.size)
    else:
        attempt(results, "unusable after a timeout", lambda: expect_unusable(impatient))
    late.barrier()
    (out / f"{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(results))


def expect_unusable(comm: Communicator) -> None:
    with pytest.raises(CommError, match="timed out"):
        comm.barrier()


def mpi_raise(out: Path) -> None:
    from sparsewire.comm import MPICommunicator

    comm = MPICommunicator()
    if comm.rank == 1:
        raise RuntimeError("rank 1 is broken")
    comm.barrier()
    (out / f"{comm.rank}.json").write_text("{}")


if __name__ == "__main__":
    mode, folder, *rest = sys.argv[1:]
    if mode in ("gloo", "tensorflow"):
        {"gloo": gloo, "tensorflow": tensorflow}[mode](Path(folder), int(rest[0]), int(rest[1]), rest[2])
    else:
        {"mpi": mpi, "mpi-raise": mpi_raise}[mode](Path(folder))
