"""The laws of a communicator for numbers: reductions, in one order and one type on all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from comm_laws_bytes import gathered

from sparsewire.comm import Communicator
from sparsewire.core.sparse import from_bfloat16, to_bfloat16
from sparsewire.errors import CommArgumentError


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
