"""What an averager sends dense: behind a message, by itself, or a whole step, with what waits added."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from strategies import MEMORIES, same_bits
from trainings import NAMES, SCHEME, averager, gradients, residuals, train

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import PeerError
from sparsewire.exchange import rider
from sparsewire.training.schedule import SchemeSchedule


@pytest.mark.parametrize("scheme", [SCHEME, f"{SCHEME} | exchange=reduce_scatter", "topk(10%) | memory=gain"])
@pytest.mark.parametrize("most", [0, 2**17])
def test_what_is_dense_has_the_same_mean_behind_a_message_and_by_itself(
    monkeypatch: pytest.MonkeyPatch, scheme: str, most: int
) -> None:
    """Of three ranks, whose order the sum follows; also where an exchange carries nothing."""
    monkeypatch.setattr(rider, "MOST", most)

    def fn(comm: Communicator) -> None:
        one = averager(comm, scheme, sizes=NAMES)
        train(one, comm, range(2))
        before, x = comm.collectives, gradients(comm, 2)
        parts = [np.frombuffer(part, np.float32) for part in comm.all_gather(x["b"].tobytes(), "b")]
        expected = (parts[0] + parts[1] + parts[2]) / np.float32(3)
        one.put(x)
        one.finish()
        assert same_bits(x["b"], expected)
        gathered = "reduce_scatter" not in scheme
        expected_calls = 1 + (2 - (most > 0) if gathered else 3)
        assert comm.collectives - before == expected_calls

    run_ranks(3, fn)


def test_damage_to_what_rides_with_a_message_names_its_rank() -> None:
    along = rider.Rider([np.zeros(4, np.float32)])
    whole = memoryview(b"xx" + along.pack())
    assert along.split([whole, whole])[0] == [b"xx", b"xx"]
    for damaged in (whole[:5], bytes(len(whole)), whole[:-1], whole[:-3].tobytes() + b"abc"):
        with pytest.raises(PeerError, match="rank 1: what travels dense was damaged"):
            along.split([whole, memoryview(damaged)])
    with pytest.raises(PeerError, match="rank 1: it failed before it could send"):
        along.split([whole, memoryview(b"")])


@pytest.mark.parametrize("how", ["exclude", "dense_below", "dense step"])
def test_what_a_parameter_has_not_sent_goes_along_when_it_travels_dense(how: str) -> None:
    changed = {
        "exclude": {"dense_names": frozenset({"w"})},
        "dense_below": {"dense_below": 301},
        "dense step": {"warmup": 99},
    }

    def fn(comm: Communicator) -> None:
        one = averager(comm)
        train(one, comm, range(3))
        unsent = comm.all_reduce(residuals(one)["w"]) / comm.size
        other = averager(comm, **changed[how])
        other.load_state_dict(one.state_dict())
        x = gradients(comm, 3)
        alone = comm.all_reduce(x["w"]) / comm.size
        other.put(x)
        other.finish()
        np.testing.assert_allclose(x["w"], alone + unsent, atol=1e-5)
        assert not other.states.by_name.get("w", {}).get("residual", np.zeros(1)).any()

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_dense_step_that_fails_leaves_what_waits_as_it_was(memory: str) -> None:
    """It adds up in the gradients' own memory, but what sparse steps have left stays until all ranks know that it is
    finite."""

    def fn(comm: Communicator) -> None:
        one = averager(comm, f"topk(5%) | memory={memory}")
        train(one, comm, range(2))
        before = {name: {key: x.copy() for key, x in kept.items()} for name, kept in one.states.by_name.items()}
        one.settings = dataclasses.replace(one.settings, schedule=SchemeSchedule(one.settings.schedule.scheme, 100))
        for spoiled in (False, True):
            x = gradients(comm, 2)
            x["w"][5] = np.nan if spoiled and comm.rank == 1 else x["w"][5]
            one.put(x)
            if spoiled:
                assert not one.finish()
            one.abandon()
            for name, kept in one.states.by_name.items():
                assert all(same_bits(x, before[name][key]) for key, x in kept.items())

    run_ranks(2, fn)


def test_a_dense_step_without_a_momentum_needs_no_memory_beside_the_gradients() -> None:
    def fn(comm: Communicator) -> None:
        one, x = averager(comm, warmup=1), gradients(comm, 0)
        plain = {name: comm.all_reduce(array) / np.float32(comm.size) for name, array in x.items()}
        one.put(x)
        assert all(same_bits(x[name], plain[name]) for name in x)  # already: no other array holds the means
        assert one.finish()
        assert all(same_bits(x[name], plain[name]) for name in x)

    run_ranks(3, fn)
