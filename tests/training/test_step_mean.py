"""A dense step's mean is kept without indices, and means the same as its entries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from strategies import MEMORIES, same_bits
from trainings import NAMES, averager, train

from sparsewire import kernels
from sparsewire.comm import Communicator, run_ranks
from sparsewire.training import places
from sparsewire.training.residuals import step_mean
from sparsewire.training.residuals.states import States
from sparsewire.training.residuals.step_mean import StepMean

SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.5, -0.1]


@pytest.fixture(params=[5, 2**17])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many elements are gone over at once."""
    for module in (places, step_mean):
        monkeypatch.setattr(module, "BLOCK", request.param)
    return request.param


@pytest.mark.parametrize("factor", [-0.9, 0.9, 0.0, -0.0, 1e-30])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_adds_what_its_entries_add(dtype: str, factor: float, block: int) -> None:
    """Also where zeros of either sign meet."""
    values, out = (grid.ravel() for grid in np.meshgrid(np.array(SPECIAL, dtype), np.array(SPECIAL, dtype)))
    other = out.copy()
    StepMean(None, values).add_to(out, factor)
    StepMean(*kernels.threshold(values, 1)).add_to(other, factor)
    assert same_bits(out, other)


def test_it_is_saved_and_scaled_as_its_entries() -> None:
    values = np.array(SPECIAL, np.float32)
    dense, sparse = StepMean(None, values, 0.5), StepMean(*kernels.threshold(values, 1), 0.5)
    found = []
    for mean in (dense, sparse, dense.scaled(0.25), sparse.scaled(0.25)):
        states = States()
        states.means["w"] = mean
        found.append(states.saved_means()["w"])
    for one, other in (found[:2], found[2:]):
        assert one["rate"] == other["rate"] == 0.5
        assert same_bits(one["indices"], other["indices"]) and same_bits(one["values"], other["values"])


@pytest.mark.parametrize("memory", MEMORIES)
def test_blocks_change_no_bit_of_a_dense_step(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(comm: Communicator) -> list[np.ndarray]:
        one = averager(comm, f"topk(5%) | values=raw | memory={memory}", warmup=3)
        means = train(one, comm, range(5))
        return [*means, *(kept for name in NAMES for kept in one.states.by_name.get(name, {}).values())]

    whole = run_ranks(2, fn)
    for module in (places, step_mean):
        monkeypatch.setattr(module, "BLOCK", 7)
    for one, other in zip(whole, run_ranks(2, fn), strict=True):
        assert len(one) == len(other) and all(map(same_bits, one, other))


@pytest.mark.parametrize("memory", ["dgc", "gmc"])
def test_a_dense_step_keeps_its_mean_without_indices(memory: str) -> None:
    """Indices of every element took twice the memory, and a pass that makes them."""

    def fn(comm: Communicator) -> None:
        one = averager(comm, f"topk(5%) | memory={memory}", warmup=9)
        train(one, comm, range(2))
        kept = one.states.means["w"]
        assert kept.indices is None and kept.values.size == NAMES["w"]

    run_ranks(2, fn)
