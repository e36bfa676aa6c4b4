"""Memory that the ranks of a machine share: agreed on by all, as large as there is room for, without a name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import same_bits

from sparsewire.comm import Communicator, run_ranks, shared_memory
from sparsewire.comm.shared_memory import Partition, SharedMemory
from sparsewire.errors import CommMismatch


@pytest.mark.parametrize("lost", [0, 1])
def test_ranks_that_cannot_share_memory_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lost: int) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    mapped = shared_memory._map
    monkeypatch.setattr(shared_memory, "_map", lambda path, size: None if next(turns) == lost else mapped(path, size))
    turns = iter(range(2))
    assert run_ranks(2, SharedMemory.open) == [None, None]
    assert not list(tmp_path.iterdir())


def test_memory_that_is_not_there_is_not_promised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert run_ranks(2, SharedMemory.open) == [None, None]
    assert not list(tmp_path.iterdir())


def test_it_grows_with_the_arrays_as_far_as_it_can(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A larger one has fewer rounds; where there is no room for it, half of it is tried."""
    make, asked = shared_memory._make, []

    def limited(size: int) -> Path | None:
        asked.append(size)
        return make(size) if size < 3 * 2**20 else None

    def fn(comm: Communicator) -> int:
        memory = SharedMemory.open(comm)
        assert memory is not None
        for size in (10, 10, 300_000, 2_000_000, 2_000_000, 6):
            cuts, mine = Partition((((0, size // 2),), ((size // 2, size),)), size), np.empty(size // 2, np.float32)
            array = np.arange(size, dtype=np.float32)
            memory.reduce_scatter(array * np.float32(comm.rank + 1), cuts, mine)
            assert same_bits(mine, np.float32(3) * array[slice(*cuts.ranges[comm.rank][0])])
        return int(memory._halves.nbytes)

    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    monkeypatch.setattr(shared_memory, "_make", limited)
    monkeypatch.setattr(shared_memory, "INITIAL", 2**17)
    sizes = run_ranks(2, fn)
    assert sizes[0] == sizes[1] == max(size for size in asked if size < 3 * 2**20)
    assert len(asked) == len(set(asked)) < 10
    assert not list(tmp_path.iterdir())


def test_ranks_that_bring_different_tensors_are_told() -> None:
    def fn(comm: Communicator) -> None:
        memory = SharedMemory.open(comm)
        assert memory is not None
        with pytest.raises(CommMismatch, match=rf"ranks \[{1 - comm.rank}\].*other tensors"):
            memory.reduce_scatter(
                np.zeros(8, np.float32), Partition((((0, 4),), ((4, 8),)), comm.rank), np.empty(4, np.float32)
            )

    run_ranks(2, fn)
