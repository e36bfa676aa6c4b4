"""Machines with several ranks: their ranks average among themselves, and one gradient a machine is exchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines import ALL, SOME, all_same, averager, flat, gradients, kept, run, train
from strategies import MEMORIES, make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks, shared_memory
from sparsewire.errors import InputError
from sparsewire.training.averager import Settings
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.nodes import nodes
from sparsewire.training.nodes.grid import Grid
from sparsewire.training.schedule import SchemeSchedule

GRIDS = [(2, 2), (2, 4), (4, 1), (1, 4), (3, 2), (2, 3)]


@pytest.fixture(params=["shared memory", "engine"])
def inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """How a machine's ranks add up: in memory that they share, or, where there is none, by the engine."""
    if request.param == "engine":
        monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "nowhere")
    for name, value in {"INITIAL": 2**9, "LARGEST": 2**11, "SMALLEST": 2**6}.items():  # a few rounds for a tensor
        monkeypatch.setattr(shared_memory, name, value)
    return str(request.param)


# --- the laws ---


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_with_everything_sent_the_mean_is_that_of_all_ranks(grid: tuple[int, int], kind: str, inside: str) -> None:
    machines, ranks = grid

    def fn(comm: Communicator) -> list[dict[str, np.ndarray]]:
        one = averager(comm, ranks, ALL)
        found = [run(one, gradients(comm, step, kind)) for step in range(2)]
        for step, means in enumerate(found):
            for name, mine in flat(gradients(comm, step, kind)).items():
                expected = comm.all_reduce(mine.astype(np.float64)) / comm.size
                np.testing.assert_allclose(means[name], expected, rtol=1e-5, atol=1e-6)
        if ranks > 1:
            assert one.nodes.stats()["nodes"]["shared_memory"] == (inside == "shared memory")
        return found

    first, *others = run_ranks(machines * ranks, fn)
    assert all(all_same(first, other) for other in others)


@pytest.mark.parametrize("exchange", ["allgather", "root", "allgather(mean=sqrt)", "reduce_scatter", "sketch"])
@pytest.mark.parametrize("per", ["parameter", "bucket", "model"])
def test_every_gradient_is_sent_or_kept_by_its_machine(per: str, exchange: str, inside: str) -> None:
    def fn(comm: Communicator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
        one = averager(comm, 2, f"{SOME} | exchange={exchange}", select_per=per)
        given, taken = {}, {}
        for step in range(5):
            x = gradients(comm, step)
            for name, mine in flat(x).items():
                given[name] = given.get(name, 0) + comm.all_reduce(mine.astype(np.float64)) / comm.size
            for name, mean in run(one, x).items():
                taken[name] = taken.get(name, 0) + mean.astype(np.float64)
        return given, taken, one.state_dict()

    found = run_ranks(4, fn)
    for given, taken, _ in found:
        assert all(same_bits(taken[name], found[0][1][name]) for name in taken)
        for name in taken if "sqrt" not in exchange else ():
            np.testing.assert_allclose(taken[name] + kept([state for *_, state in found], name), given[name], atol=1e-4)
    assert all(kept([state for *_, state in found], name).any() for name in ("w", "v"))


def test_each_rank_sends_its_part_alone() -> None:
    """A quarter of the entries, between machines; the rest of the bytes stays inside, and all of them are told."""

    def fn(comm: Communicator) -> tuple[dict[str, Any], int]:
        one = averager(comm, 4, "topk(k=400) | indices=raw | values=raw")
        run(one, {"w": make("normal", 100_000, "float32", comm.rank)})
        return one.stats(), comm.bytes_sent

    for stats, own in run_ranks(8, fn):
        facts = stats["nodes"]
        assert (facts["machines"], facts["ranks"]) == (2, 4)
        assert 100 * 8 <= facts["bytes_between"] < 100 * 8 + 200
        assert facts["bytes_inside"] >= 100_000 * 4
        assert stats["bytes_sent"] > own + facts["bytes_between"]


@pytest.mark.parametrize(
    ("memory", "warmup", "per"),
    [*((memory, 0, "parameter") for memory in MEMORIES), ("dgc", 3, "parameter"), ("gain", 3, "parameter"),
     ("gmc", 0, "model")],
)  # fmt: skip
def test_a_resumed_training_equals_one_that_never_stopped(memory: str, warmup: int, per: str) -> None:
    scheme = f"{SOME} | memory={memory}"

    def fn(comm: Communicator) -> None:
        whole, first, second = (averager(comm, 2, scheme, warmup, select_per=per) for _ in range(3))
        expected = train(whole, comm, range(7))
        train(first, comm, range(4))
        second.load_state_dict(first.state_dict())
        assert all_same(train(second, comm, range(4, 7)), expected[4:])

    run_ranks(4, fn)


def test_buckets_that_change_change_nothing() -> None:
    """Parameters are cut, not buckets: DDP's second step has others than its first."""

    def fn(comm: Communicator) -> None:
        one, other = averager(comm, 2), averager(comm, 2)
        for step in range(4):
            x, y = flat(gradients(comm, step)), flat(gradients(comm, step))
            one.put(x)
            one.finish()
            names = list(y)[:: 1 if step % 2 else -1]
            ends = np.cumsum([y[name].size for name in names])
            joined = np.concatenate([y[name] for name in names])
            slices = tuple(Slice(n, end - y[n].size, end) for n, end in zip(names, ends.tolist(), strict=True))
            other.put_buffers([Buffer(slices, "float32", lambda joined=joined: joined)])
            other.finish()
            assert all(same_bits(x[item.name], joined[item.start : item.stop]) for item in slices)
        assert len(other.nodes._parts) == 1

    run_ranks(4, fn)


@pytest.mark.parametrize("name", ["w", "b", "table"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("warmup", [0, 9])
def test_a_step_that_one_rank_spoils_changes_nothing(name: str, bad: float, warmup: int, inside: str) -> None:
    """All ranks see it, also those whose part is finite."""

    def fn(comm: Communicator) -> None:
        one = averager(comm, 2, warmup=warmup)
        train(one, comm, range(2))
        before, x = one.state_dict(), gradients(comm, 2)
        if comm.rank == 3:
            (x[name].values if name == "table" else x[name])[-1] = bad
        means = run(one, x, expect=False)
        assert not np.isfinite(means[name]).all()
        after = one.state_dict()
        for key, buffers in before["buffers"].items():
            for buffer, old in buffers.items():
                new = after["buffers"][key][buffer]
                assert same_bits(old, new) if isinstance(old, np.ndarray) else same_bits(old["values"], new["values"])
        assert one.step == 3

    run_ranks(4, fn)


def test_gradients_are_clipped_before_they_are_added_up() -> None:
    """As without machines: with everything sent, the same means."""

    def fn(comm: Communicator) -> None:
        found = [train(averager(comm, per, ALL, clip_norm=0.5), comm, range(2)) for per in (2, None)]
        for one, other in zip(*found, strict=True):
            assert all(np.allclose(one[name], other[name], atol=1e-6) for name in one)
        assert 0 < sum(float((mean**2).sum()) for mean in found[0][0].values()) ** 0.5 <= 0.5

    run_ranks(4, fn)


@pytest.mark.parametrize("memory", ["dgc", "gmc", "gain", "dgc(mask=false)"])
def test_a_momentum_in_the_memory_is_handed_out_as_without_machines(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        rates = iter([0.1] * 6 + [0.05] * 6)
        now = {"w": 0.1, "v": 0.1}
        settings = {"momenta": lambda: {"w": 0.9, "v": 0.9}, "rates": lambda: now}
        both = [averager(comm, per, f"{ALL} | memory={memory}", **settings) for per in (2, None)]
        for step in range(4):
            now["w"] = next(rates) / (1 + step)
            one, other = (run(arm, gradients(comm, step)) for arm in both)
            assert all(np.allclose(one[name], other[name], atol=1e-5) for name in one)

    run_ranks(4, fn)


def test_rows_are_not_cut() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, 2, "topk(10%) | values=raw | memory=none | transform=rows(width=8)")
        mean = run(one, {"w": make("normal", 24 * 8 + 3, "float32", comm.rank // 2)})["w"]
        rows = np.append(mean, np.zeros(5, np.float32)).reshape(-1, 8)
        assert {int(np.count_nonzero(row)) for row in rows[:-1]} <= {0, 8}
        assert rows.any()

    run_ranks(4, fn)


def test_a_parameter_without_a_gradient_waits() -> None:
    """On every rank: nobody will use its mean, so what was not sent of it stays."""

    def fn(comm: Communicator) -> dict[str, Any]:
        one = averager(comm, 2)
        train(one, comm, range(2))
        before, x = one.state_dict(), gradients(comm, 2)
        x["w"][:] = 0
        assert not run(one, x)["w"].any()
        assert before["buffers"]["w"]["residual"].any()
        assert same_bits(one.state_dict()["buffers"]["w"]["residual"], before["buffers"]["w"]["residual"])
        return before

    run_ranks(4, fn)


# --- which ranks share a machine ---


def test_ranks_find_out_who_shares_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a machine need not be neighbours."""

    def fn(comm: Communicator) -> None:
        one = averager(comm, "auto", ALL)
        assert one.nodes.grid.machines == ((0, 2), (1, 3))
        means = run(one, gradients(comm, 0))
        expected = comm.all_reduce(gradients(comm, 0)["w"]) / comm.size
        np.testing.assert_allclose(means["w"], expected, atol=1e-6)

    monkeypatch.setattr(nodes, "machine_name", lambda: f"host {int(threading.current_thread().name[5:]) % 2}")
    run_ranks(4, fn)


def test_processes_of_one_machine_have_one_name() -> None:
    assert nodes.machine_name() == nodes.machine_name() != ""
    assert run_ranks(2, lambda comm: averager(comm, "auto").nodes.grid.machines) == [((0, 1),)] * 2


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: Grid(((0, 1, 2, 3), (4, 5))), r"machines have 4, 2 ranks.*nodes=2"),
        (lambda: Grid.even(6, 4), r"nodes=4: 6 ranks are no multiple.*divisor of 6"),
        (lambda: Settings(SchemeSchedule(sw.scheme(SOME)), nodes="each"), r"'auto' or a number.*'each'"),
        (lambda: Settings(SchemeSchedule(sw.scheme(SOME)), nodes=0), r"1 or more, not 0"),
        (lambda: Settings(SchemeSchedule(sw.scheme(SOME)), nodes=True), r"not True"),
    ],
)
def test_what_makes_no_machines_is_refused(attempt: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        attempt()


# --- memory that ranks share ---


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even while it is in use: the file has no name any more."""
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)

    def fn(comm: Communicator) -> None:
        one = averager(comm, 2)
        train(one, comm, range(1))
        assert one.nodes.memory is not None
        assert not list(tmp_path.iterdir())

    run_ranks(4, fn)
