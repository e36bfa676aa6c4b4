"""Machines with several ranks: their ranks average among themselves, and one gradient a machine is exchanged."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import MEMORIES, make, same_bits

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks, shared_memory
from sparsewire.comm.shared_memory import Partition, SharedMemory
from sparsewire.errors import CommMismatch, InputError
from sparsewire.training.averager import Averager, Settings
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.nodes import nodes
from sparsewire.training.nodes.grid import Grid
from sparsewire.training.residuals.reshard import reshard
from sparsewire.training.schedule import SchemeSchedule

GRIDS = [(2, 2), (2, 4), (4, 1), (1, 4), (3, 2), (2, 3)]
ALL = "nonzero | values=raw"
SOME = "topk(5%) | values=qsgd(5)"
NAMES = {"w": 3000, "v": 1500, "u": 2, "b": 7}
ROWS = 40


@pytest.fixture(params=["shared memory", "engine"])
def inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """How a machine's ranks add up: in memory that they share, or, where there is none, by the engine."""
    if request.param == "engine":
        monkeypatch.setattr(shared_memory, "FOLDER", tmp_path / "nowhere")
    for name, value in {"INITIAL": 2**9, "LARGEST": 2**11, "SMALLEST": 2**6}.items():  # a few rounds for a tensor
        monkeypatch.setattr(shared_memory, name, value)
    return str(request.param)


def averager(comm: Communicator, per: int | str | None, scheme: str = SOME, warmup: int = 0, **more: Any) -> Averager:
    more = {"dense_below": 10, **more}
    return Averager(comm, Settings(SchemeSchedule(sw.scheme(scheme), warmup), nodes=per, **more))


def gradients(comm: Communicator, step: int, kind: str = "float32") -> dict[str, Any]:
    """Dense ones and a table's rows."""
    dense = {
        name: make("normal", size, kind, 1000 * step + 10 * comm.rank + place)
        for place, (name, size) in enumerate(NAMES.items())
    }
    rows = np.unique(np.random.default_rng([step, comm.rank]).integers(0, ROWS, 12))
    values = make("normal", 4 * rows.size, kind, step + 50 + comm.rank)
    return {**dense, "table": sw.Sparse(rows, values, (ROWS, 4), width=4)}


def run(one: Averager, x: dict[str, Any], expect: bool = True) -> dict[str, np.ndarray]:
    """A step; the means, dense."""
    one.put(x)
    assert one.finish() == expect
    means = {name: kept for name, kept in x.items() if not isinstance(kept, sw.Sparse)}
    return means | {name: kept.to_dense().reshape(-1) for name, kept in one.sparse_means.items()}


def train(one: Averager, comm: Communicator, steps: range) -> list[dict[str, np.ndarray]]:
    return [run(one, gradients(comm, step)) for step in steps]


def flat(x: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: kept.to_dense().reshape(-1) if isinstance(kept, sw.Sparse) else kept for name, kept in x.items()}


def all_same(a: list[dict[str, np.ndarray]], b: list[dict[str, np.ndarray]]) -> bool:
    return len(a) == len(b) and all(same_bits(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x)


def kept(states: list[dict[str, Any]], name: str) -> np.ndarray:
    """The mean over the machines of what was not sent of a parameter."""
    whole = reshard(states, 1)[0]["buffers"].get(name, {}).get("residual", np.zeros(1))
    if isinstance(whole, dict):
        table = np.zeros((ROWS, 4))
        table[whole["indices"]] = whole["values"].reshape(-1, 4)
        return table.reshape(-1)
    return np.asarray(whole, np.float64)


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


# --- other ranks, other machines ---


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
        one.load_state_dict(dealt[comm.rank])
        state = one.state_dict()
        train(one, comm, range(3, 5))
        return state

    states = run_ranks(old[0], started)
    dealt = reshard(states[::-1], new[0], Grid.even(*new))
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
