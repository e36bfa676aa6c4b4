"""What an `Averager` keeps: resharded to another number of ranks, rows of tables, half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import make, same_bits
from trainings import NAMES, averager, gradients, train

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.core.statefile import pack
from sparsewire.errors import InputError
from sparsewire.kernels.scratch import BufferPool
from sparsewire.training.averager import Averager
from sparsewire.training.residuals.reshard import reshard

# --- another number of ranks ---


@pytest.mark.parametrize("old", [1, 2, 3, 4])
@pytest.mark.parametrize("new", [1, 2, 3, 4, 5])
def test_the_mean_of_what_is_unsent_stays(old: int, new: int) -> None:
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
    resharded = reshard(states, new)
    assert [(state["rank"], state["world_size"]) for state in resharded] == [(rank, new) for rank in range(new)]
    for name in ("w", "v", "table"):
        assert means(states, name).any()
        np.testing.assert_allclose(means(resharded, name), means(states, name), atol=1e-6)


@pytest.mark.parametrize("memory", ["dgc", "dgc(mask=false)", "gmc", "gain"])
@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_a_momentum_goes_on_with_another_number_of_ranks(memory: str, old: int, new: int) -> None:
    """The means of the step before go to every rank: the optimizer's buffer equals M_t from the first step on."""
    scheme, rate = f"nonzero | values=raw | memory={memory}", 0.1

    def started(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, scheme, rates=lambda: {"w": rate})
        for step in range(3):
            one.put(gradients(comm, step))
            one.finish()
        return one.state_dict()

    def resumed(comm: Communicator) -> None:
        handed, whole = (averager(comm, scheme, momenta=m, rates=lambda: {"w": rate / 4}) for m in (None, dict))
        found = []
        for one in (handed, whole):
            one.load_state_dict(resharded[comm.rank])
            found.append(gradients(comm, 3))
            one.put(found[-1])
            one.finish()
        expected = comm.all_reduce(gradients(comm, 3)["w"]) / comm.size
        if memory != "dgc":  # which has masked all of its velocity
            expected = expected + 0.9 * last.to_dense() * (4 if memory == "gmc" else 1)
        np.testing.assert_allclose(found[1]["w"], expected, atol=1e-5)
        np.testing.assert_allclose(found[0]["w"] + 0.9 * last.to_dense(), found[1]["w"], atol=1e-5)

    states = run_ranks(old, started)
    resharded = reshard(states, new)
    mean = states[0]["means"]["w"]
    last = sw.Sparse(mean["indices"], mean["values"], (NAMES["w"],))
    assert mean["rate"] == rate and last.count
    run_ranks(new, resumed)


# --- states that are wrong ---

ODD: list[Any] = [
    None, -1, 2.5, "x", True, [], {}, {"w": 1}, {"w": {"residual": 1}}, {"w": {"residual": np.ones(3, np.float16)}},
    {"w": {"residual": np.array([np.nan], np.float32)}}, {"table": {"residual": {"indices": [1]}}},
    {"w": {"indices": np.array([-1]), "values": np.ones(1, np.float32)}},
    {"w": {"indices": np.array([2**40]), "values": np.ones(1, np.float32)}},
    {"w": {"indices": np.array([1], np.int8), "values": np.ones(1, np.float32)}},
    {"w": {"indices": np.array([2, 1]), "values": np.ones(2, np.float32)}},
    {"w": {"indices": np.array([1, 2]), "values": np.ones(1, np.float32)}},
    {"w": {"indices": np.array([1]), "values": np.ones(1, np.float32), "rate": "fast"}},
]  # fmt: skip


def test_whatever_is_wrong_with_a_state_is_an_input_error_and_changes_nothing() -> None:
    def fn(comm: Communicator) -> None:
        one, told = averager(comm, "topk(5%) | values=qsgd(5) | memory=dgc", rates=lambda: {"w": 0.1}), set()
        table = sw.Sparse(np.arange(3), make("normal", 12, "float32"), (10, 4), width=4)
        for step in range(2):
            one.put({**gradients(comm, step), "table": table})
            one.finish()
        state = one.state_dict()
        before = pack(state)
        rows = state["buffers"]["table"]["residual"]
        wrong = [(key, {k: value for k, value in state.items() if k != key}) for key in state]
        wrong += [(key, {**state, key: odd}) for key in state for odd in ODD]
        wrong += [(f"rows {key}", {**state, "buffers": {"table": {"residual": {**rows, key: odd}}}})
                  for key in rows for odd in (None, -1, "x", [], [-1], [10**30], 2**62, np.ones(1))]  # fmt: skip
        for key, bad in (*wrong, ("all", None), ("all", [])):
            try:
                one.load_state_dict(bad)
            except InputError:
                told.add(key)
                assert pack(one.state_dict()) == before, (key, bad)
            else:
                one.load_state_dict(state)
        assert told >= {"all", *state.keys() - {"scheme"}, *(f"rows {key}" for key in rows)}

    run_ranks(1, fn)


def test_a_state_is_read_first_and_taken_over_later() -> None:
    """So that ranks can agree in between; what was read is not changed by steps that are made meanwhile."""

    def fn(comm: Communicator) -> None:
        one, other = averager(comm, "topk(5%)"), averager(comm, "topk(5%)")
        for step in range(3):
            one.put(gradients(comm, step))
            one.finish()
        state = pack(one.state_dict())
        ready, untouched = other.read_state(one.state_dict()), pack(other.state_dict())
        assert pack(other.state_dict()) == untouched
        other.put(gradients(comm, 7))
        other.finish()
        other.take_over(ready)
        assert pack(other.state_dict()) == state

    run_ranks(2, fn)


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


@pytest.mark.parametrize("memory", ["dgc", "gmc", "gain"])
def test_a_sparse_gradient_leaves_its_momentum_to_the_optimizer(memory: str) -> None:
    """All of it is sent in every step: nothing is late but what a lossy codec left, and that is all that is kept."""

    def fn(comm: Communicator) -> None:
        one, other = (averager(comm, f"topk | values=qsgd(3) | memory={rule}") for rule in (memory, "residual"))
        for step in range(4):
            rows = np.flatnonzero(np.random.default_rng(2 * step + comm.rank).random(10) < 0.5)
            x = sw.Sparse(rows, make("normal", 4 * rows.size, "float32", step), (10, 4), width=4)
            for run in (one, other):
                run.put({"table": x})
                run.finish()
            assert same_bits(one.sparse_means["table"].to_dense(), other.sparse_means["table"].to_dense())
        assert list(one.states.by_name["table"]) == ["residual"] and not one.states.means

    run_ranks(2, fn)


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
    staging = BufferPool()
    large, small = staging(1000, np.float32), staging(10, np.float32)
    assert np.shares_memory(large, small) and small.size == 10
    assert not np.shares_memory(large, staging(2000, np.float32))
    assert sum(buffer.size for buffer in staging._buffers.values()) == 2000


# --- tensors that are known beforehand ---


@pytest.mark.parametrize(("sizes", "text"), [
    ({**NAMES, "v": 201}, "the state has 200 numbers for 'v', the model 201"),
    ({"w": 300, "b": 7}, "the state has 200 numbers for 'v', the model None"),
])  # fmt: skip
@pytest.mark.parametrize("memory", ["residual", "gmc"])
def test_an_averager_that_knows_its_tensors_refuses_a_state_of_others(
    memory: str, sizes: dict[str, int], text: str
) -> None:
    def fn(comm: Communicator) -> None:
        scheme = f"topk(5%) | memory={memory}"
        one = averager(comm, scheme)
        train(one, comm, range(2))
        saved, other = one.state_dict(), Averager(comm, one.settings, sizes)
        with pytest.raises(InputError, match=text):
            other.load_state_dict(saved)
        assert other.step == 0
        Averager(comm, one.settings, NAMES).load_state_dict(saved)

    run_ranks(1, fn)


def test_a_mean_of_a_tensor_that_will_not_come_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, "topk(5%) | memory=gmc")
        train(one, comm, range(2))
        saved = one.state_dict()
        saved["buffers"].pop("v")
        with pytest.raises(InputError, match=r"the state has a mean at \d+ for 'v', the model None"):
            Averager(comm, one.settings, {"w": 300, "b": 7}).load_state_dict(saved)

    run_ranks(1, fn)
