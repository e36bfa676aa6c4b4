"""What an `Averager` keeps: dealt out to another number of ranks, rows of tables, half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import make, same_bits
from test_averager import NAMES, averager, gradients

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.kernels.scratch import Kept
from sparsewire.states import deal

# --- another number of ranks ---


@pytest.mark.parametrize("old", [1, 2, 3, 4])
@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
def test_the_mean_of_what_is_owed_stays(old: int, new: int) -> None:
    def fn(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, "topk(5%) | values=qsgd(5)")
        rows = np.arange(3) + comm.rank
        one.put({**gradients(comm, 0), "table": sw.Sparse(rows, make("normal", 12, "float32"), (10, 4), width=4)})
        one.finish()
        return one.state_dict()

    def means(states: list[dict[str, Any]], name: str) -> np.ndarray:
        found = []
        for state in states:
            kept = state["buffers"][name]["residual"]
            if isinstance(kept, dict):
                kept = sw.Sparse(kept["indices"], kept["values"], kept["shape"], width=kept["width"]).to_dense()
            found.append(kept.astype(np.float64))
        return sum(found) / len(found)

    states = run_ranks(old, fn)
    dealt = deal(states, new)
    assert [(state["rank"], state["world_size"]) for state in dealt] == [(rank, new) for rank in range(new)]
    for name in ("w", "v", "table"):
        assert means(states, name).any()
        np.testing.assert_allclose(means(dealt, name), means(states, name), atol=1e-6)


# --- sparse gradients ---


def test_rows_that_no_gradient_touched_take_no_room_in_a_state() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, "topk(5%) | values=qsgd(3)")
        x = sw.Sparse(np.array([5, 10**6]), make("normal", 16, "float32"), (2 * 10**6, 8), width=8)
        one.put({"table": x})
        one.finish()
        assert one.sparse_means["table"].indices.tolist() == [5, 10**6]
        kept = one.state_dict()["buffers"]["table"]["residual"]
        assert kept["indices"].tolist() == [5, 10**6] and kept["width"] == 8
        other = averager(comm, "topk(5%) | values=qsgd(3)")
        other.load_state_dict(one.state_dict())
        for run in (one, other):
            run.put({"table": x})
            run.finish()
        assert same_bits(one.sparse_means["table"].values, other.sparse_means["table"].values)

    run_ranks(1, fn)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_worked_on_in_float32(dtype: str) -> None:
    def fn(comm: Communicator) -> None:
        one, x = averager(comm), gradients(comm, 0)["w"]
        one.put({"w": x}, {"w": dtype})
        one.finish()
        assert one.stats()["bytes_dense"] == 2 * NAMES["w"]
        with pytest.raises(InputError, match="flat writable array of float32"):
            one.put({"w": np.ones(3)}, {"w": dtype})

    run_ranks(1, fn)


def test_a_staging_buffer_is_reused_for_every_bucket() -> None:
    """Buckets that are rebuilt leave no copy behind: there is one, as large as the largest."""
    staging = Kept()
    large, small = staging(1000, np.float32), staging(10, np.float32)
    assert np.shares_memory(large, small) and small.size == 10
    assert not np.shares_memory(large, staging(2000, np.float32))
    assert sum(buffer.size for buffer in staging._buffers.values()) == 2000
