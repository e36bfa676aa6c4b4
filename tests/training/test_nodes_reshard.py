"""States of machines with several ranks go on with other ranks and other machines, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import SOME, averager, kept, train
from strategies import same_bits

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.training.nodes.grid import Grid
from sparsewire.training.residuals.reshard import reshard


@pytest.mark.parametrize(
    ("old", "new"),
    [((4, 2), (4, 1)), ((4, 1), (4, 2)), ((4, 2), (4, 4)), ((4, 2), (6, 2)), ((6, 2), (4, 2)), ((4, 2), (2, 1)),
     ((2, 1), (6, 3)), ((4, 2), (4, 2))],
)  # fmt: skip
@pytest.mark.parametrize("memory", ["residual", "dgc", "gain"])
def test_other_ranks_and_machines_take_over_the_mean(old: tuple[int, int], new: tuple[int, int], memory: str) -> None:
    scheme = f"{SOME} | memory={memory}"

    def started(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, old[1], scheme)
        train(one, comm, range(3))
        return one.state_dict()

    def resumed(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, new[1], scheme)
        one.load_state_dict(resharded[comm.rank])
        state = one.state_dict()
        train(one, comm, range(3, 5))
        return state

    states = run_ranks(old[0], started)
    resharded = reshard(states[::-1], new[0], Grid.even(*new))
    again = run_ranks(new[0], resumed)
    facts = [(state["rank"], state["world_size"], state["step"]) for state in again]
    assert facts == [(rank, new[0], 3) for rank in range(new[0])]
    for name in ("w", "v", "table"):
        assert kept(states, name).any()
        np.testing.assert_allclose(kept(again, name), kept(states, name), atol=1e-6)
    assert memory == "residual" or states[0]["means"]
    for name, mean in reshard(states, 1)[0]["means"].items():
        joined = reshard(again, 1)[0]["means"][name]
        assert same_bits(joined["indices"], mean["indices"]) and same_bits(joined["values"], mean["values"])
    if old == new:
        assert all(same_bits(a["buffers"]["w"]["residual"], b["buffers"]["w"]["residual"])
                   for a, b in zip(states, again, strict=True))  # fmt: skip


def test_a_state_of_other_machines_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        states = [averager(comm, per).state_dict() for per in (None, 2, 4)]
        for per, state in ((2, states[0]), (None, states[1]), (2, states[2])):
            with pytest.raises(InputError, match=r"state of rank \d of 4.*here is.*load\(link, folder\)"):
                averager(comm, per).load_state_dict(state)

    run_ranks(4, fn)
