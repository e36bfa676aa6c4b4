"""`HostLink`: what Keras and JAX build on, with arrays of NumPy and ranks in threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import edit

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import CommError, InputError, SparsewireError
from sparsewire.training.agree import agree
from sparsewire.training.host_link import HostLink
from sparsewire.training.settings import read_settings, real_sizes

TENSORS = {"w": np.zeros((30, 20), np.float32), "b": np.zeros(9, np.float32)}


def linked(comm: Communicator) -> HostLink:
    scheme = "topk(10%) | indices=rice | values=raw | memory=dgc(momentum=0.9)"
    settings = read_settings(TENSORS, scheme, "parameter", 16, (), 1, None, None, 0, None, None, None)
    agree(comm, settings, TENSORS)
    return HostLink(comm, settings, real_sizes(TENSORS))


def trained(link: HostLink, steps: range) -> list[Any]:
    """The means of these steps, as bytes."""
    means = []
    for step in steps:
        draw = np.random.default_rng([link.comm.rank, step])
        gradients = {name: draw.standard_normal(x.shape).astype(np.float32) for name, x in TENSORS.items()}
        means.append({name: mean.tobytes() for name, mean in link.exchange(gradients).items()})
    return means


def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    def rank(comm: Communicator) -> bool:
        link, again = linked(comm), linked(comm)
        trained(link, range(3))
        link.save(tmp_path)
        again.load(tmp_path)
        return trained(link, range(3, 6)) == trained(again, range(3, 6))

    assert run_ranks(2, rank) == [True, True]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("damage", ["bit", "NaN", "size", "type", "missing", "step", "mean"])
def test_one_ranks_damaged_file_is_loaded_by_nobody(damage: str, victim: int, tmp_path: Path) -> None:
    def rank(comm: Communicator) -> bool:
        link, other = linked(comm), linked(comm)
        trained(link, range(2))
        trained(other, range(2))
        path = link.save(tmp_path)
        if comm.rank == victim:
            edit(path, damage)
        comm.barrier()
        with pytest.raises(InputError, match=rf"rank {victim}: .*sparsewire-{victim:05d}-of-"):
            link.load(tmp_path)
        return trained(link, range(2, 5)) == trained(other, range(2, 5))

    assert run_ranks(2, rank) == [True, True]


def test_a_step_that_fails_ends_the_link_and_leaves_its_buffers() -> None:
    def rank(comm: Communicator) -> str:
        link = linked(comm)
        trained(link, range(2))
        before = link.state_dict()["buffers"]["w"]["residual"].copy()
        gradients = TENSORS if comm.rank else {**TENSORS, "w": np.zeros((3, 3), np.float32)}
        with pytest.raises((SparsewireError, CommError)):
            link.exchange(gradients)
        np.testing.assert_array_equal(link.state_dict()["buffers"]["w"]["residual"], before)
        with pytest.raises(SparsewireError, match="the link has failed"):
            link.exchange(TENSORS)
        return repr(link)

    assert run_ranks(2, rank) == ["<HostLink at step 2: None>"] * 2
