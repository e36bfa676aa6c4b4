"""`memory=gain`: one gain on all ranks, and what is kept of a training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gain_steps import COMPRESSED, SOME, gain_of, phased, step_of
from strategies import BACKENDS, make, same_bits, using
from trainings import NAMES, averager, gradients, put_groups, residuals, train

from sparsewire import kernels
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.kernels.device.host import KnownPair
from sparsewire.training.residuals.reshard import reshard


@pytest.mark.parametrize(("size", "nodes", "per"), [(1, None, "parameter"), (5, None, "model"), (6, 2, "bucket")])
def test_all_ranks_have_the_same_gain(size: int, nodes: int | None, per: str) -> None:
    def fn(comm: Communicator) -> list[tuple[float, float]]:
        one = averager(comm, SOME, select_per=per, nodes=nodes)
        found = []
        for step in range(6):
            x = gradients(comm, step)
            x["w"] *= np.float32(10 * comm.rank)  # other shares of the energy on each rank
            step_of(one, x)
            found.append((gain_of(one)["step"], gain_of(one)["share"]))
        return found

    ranks = run_ranks(size, fn)
    steps = [[step for step, _ in found] for found in ranks]
    assert all(found == steps[0] for found in steps)
    assert steps[0][0] == 1 < steps[0][1]
    assert size == 1 or len({found[-1][1] for found in ranks}) > 1


@pytest.mark.parametrize("names", [("w", "v", "b"), ("w", "v")])
def test_the_gain_travels_with_what_is_dense(names: tuple[str, ...]) -> None:
    def fn(comm: Communicator) -> None:
        calls = []
        for memory in ("residual", "gain"):
            before, one = comm.collectives, averager(comm, f"topk(5%) | memory={memory}")
            step_of(one, {name: x for name, x in gradients(comm, 0).items() if name in names})
            calls.append(comm.collectives - before)
        assert calls[1] - calls[0] == (0 if "b" in names else 1)

    run_ranks(2, fn)


# --- what is kept of a training ---


@pytest.mark.parametrize("nonfinite", [4, 5])
def test_a_step_that_is_not_finite_changes_nothing(nonfinite: int) -> None:
    """A sparse one, or a dense one."""

    def fn(comm: Communicator) -> None:
        one = phased(comm, SOME)
        train(one, comm, range(nonfinite))
        before, x = one.state_dict(), gradients(comm, nonfinite)
        x["w"][0] = np.nan if comm.rank == 1 else x["w"][0]
        assert (one.scheme is None) == (nonfinite == 5)
        step_of(one, x, finite=False)
        after = one.state_dict()
        assert before["gain"] == after["gain"] and 0 < after["gain"]["share"] < 1
        for name in COMPRESSED:
            assert same_bits(before["buffers"][name]["residual"], after["buffers"][name]["residual"])
            assert same_bits(before["means"][name]["values"], after["means"][name]["values"])

    run_ranks(2, fn)


def test_an_error_leaves_the_share_as_it_was() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, SOME)
        train(one, comm, range(2))
        before = one.state_dict()["gain"]
        one.put(gradients(comm, 2))
        one._gain.note(KnownPair((1.0, 1.0)))
        one.abandon()
        one._gain.follow(dense=False)
        assert one.state_dict()["gain"] == before

    run_ranks(1, fn)


def test_the_gain_does_not_depend_on_the_losss_scale() -> None:
    def fn(comm: Communicator) -> None:
        scale = [1.0]
        plain, scaled = averager(comm, SOME), averager(comm, SOME, scale=lambda: scale[0])
        for step, factor in enumerate([1.0, 65536.0, 65536.0, 0.5, 2.0]):
            scale[0] = factor
            x, y = step_of(plain, gradients(comm, step)), step_of(scaled, gradients(comm, step, factor))
            assert gain_of(plain) == gain_of(scaled)
            assert all(same_bits(x[name] * np.float32(factor), y[name]) for name in NAMES)

    run_ranks(2, fn)


def test_a_resumed_training_is_exact_whatever_the_buckets() -> None:
    """An engine that starts anew may bundle its parameters in another way at first."""

    def fn(comm: Communicator) -> None:
        whole, parts = averager(comm, SOME), averager(comm, SOME)
        for step in range(8):
            if step == 4:
                state, parts = parts.state_dict(), averager(comm, SOME)
                parts.load_state_dict(state)
            train(whole, comm, range(step, step + 1))
            put_groups(parts, gradients(comm, step), [["v", "b"], ["w"]] if step == 4 else [["w", "v", "b"]])
            assert gain_of(parts) == gain_of(whole)
            mine, theirs = residuals(parts), residuals(whole)
            assert all(same_bits(mine[name], theirs[name]) for name in COMPRESSED)
        assert gain_of(whole)["step"] > 1

    run_ranks(3, fn)


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (3, 1)])
def test_other_ranks_take_over_the_largest_share(old: int, new: int) -> None:
    def started(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, SOME)
        for step in range(3):
            x = gradients(comm, step)
            x["w"][0] = 100 * comm.rank
            step_of(one, x)
        return one.state_dict()

    states = run_ranks(old, started)
    shares = [state["gain"]["share"] for state in states]
    assert len(set(shares)) == old and shares[0] < max(shares)
    for state in reshard(states, new):
        assert state["gain"] == {"share": max(shares)}


def test_a_state_of_another_memory_tells_no_share_and_a_wrong_one_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        one, other = averager(comm, "topk(5%) | memory=gmc"), averager(comm, SOME)
        train(one, comm, range(3))
        state = one.state_dict()
        other.load_state_dict(state)
        train(other, comm, range(3, 4))
        assert gain_of(other)["step"] == 1
        for share in (-0.1, 1.5, float("nan")):
            with pytest.raises(InputError, match="share of the energy"):
                other.load_state_dict({**state, "gain": {"share": share}})

    run_ranks(2, fn)


def backends() -> Iterator[tuple[str, int]]:
    return ((backend, threads) for backend in BACKENDS for threads in (1, 3))


def test_native_and_reference_threads_or_not_have_the_same_bits() -> None:
    size = 2**18 + 77

    def fn(comm: Communicator) -> list[Any]:
        one, found = averager(comm, "topk(1%) | memory=gain"), []
        for step in range(4):
            x = {"w": make("magnitudes", size, "float32", 10 * step + comm.rank)}
            found += [step_of(one, x)["w"].tobytes(), gain_of(one)]
        return found

    before, runs = kernels.threads, []
    try:
        for backend, kernels.threads in backends():
            with using(backend):
                runs.append(run_ranks(2, fn))
    finally:
        kernels.threads = before
    assert all(run == runs[0] for run in runs)
    assert runs[0][0][-1]["step"] > 1
