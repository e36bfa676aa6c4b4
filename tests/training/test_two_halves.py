"""A step whose means go out before it is known whether it counts: `write_means` and `settle`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strategies import MEMORIES, make, same_bits
from trainings import NAMES, averager, gradients

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice

MIXED = "topk(5%) | indices=rice | values=qsgd(5)"
CASES = [
    pytest.param(f"{MIXED} | memory={memory}", warmup, more, id=f"{memory} {warmup} {more}")
    for memory in MEMORIES
    for warmup in (0, 3, 5)
    for more in ({}, {"select_per": "model"}, {"select_per": "bucket"}, {"clip_norm": 0.5})
] + [
    pytest.param("topk(10%) | memory=gain", 0, {"nodes": 2}, id="nodes"),
    pytest.param("topk(10%) | memory=dgc", 3, {"nodes": 2}, id="nodes dense"),
    pytest.param("topk(10%) | memory=gmc | exchange=reduce_scatter", 0, {}, id="reduce_scatter"),
    pytest.param("topk(10%) | memory=residual | exchange=sketch", 0, {}, id="sketch"),
    pytest.param("topk(10%) | memory=dgc | exchange=shared", 0, {}, id="shared"),
    pytest.param("topk(10%) | transform=dct | memory=gmc", 0, {}, id="dct"),
]  # fmt: skip
TABLE = (40, 4)


def given(comm: Communicator, step: int) -> dict[str, Any]:
    """Gradients of every kind; each third step this rank has none for one parameter."""
    x: dict[str, Any] = gradients(comm, step)
    if step % 3 == 2 and comm.rank == 1:
        x["v"][:] = 0
    rows = np.flatnonzero(make("normal", TABLE[0], "float32", 77 * step + comm.rank) > 0.5)
    x["t"] = sw.Sparse(rows, make("normal", rows.size * 4, "float32", 5 * step + comm.rank), TABLE, width=4)
    return x


def put(one: Averager, x: dict[str, Any], half: bool) -> Callable[[], dict[str, Any]]:
    """Puts a step's gradients, in `half` as an engine that keeps float16; what gives its means."""
    sparse = {"t": x["t"]}
    dense = {name: array for name, array in x.items() if name not in sparse}
    if not half:
        one.put({**dense, **sparse})
        return lambda: {**dense, **one.sparse_means}
    flat = np.concatenate(list(dense.values())).astype(np.float16)
    ends = np.cumsum([0, *(array.size for array in dense.values())]).tolist()
    slices = tuple(Slice(name, ends[place], ends[place + 1]) for place, name in enumerate(dense))
    scratch = np.empty(flat.size, np.float32)

    def take() -> np.ndarray:
        scratch[:] = flat
        return scratch

    one.put_buffers([Buffer(slices, "float16", take, lambda mean: np.copyto(flat, mean, "same_kind"), copies=True)])
    one.put_sparse("t", x["t"])
    return lambda: {"flat": flat, **one.sparse_means}


def make_step(one: Averager, comm: Communicator, step: int, half: bool, late: bool, counted: bool = True) -> list[Any]:
    """One step; in between, the optimizer and the engine do with the gradients as they like. Its means."""
    x = given(comm, step)
    means = put(one, x, half)
    finite = one.prepare()
    assert finite
    if not late:
        one.commit(finite)
        return list(copies(means()))
    one.write_means(finite)
    made = list(copies(means()))
    for array in means().values():
        numbers = array if isinstance(array, np.ndarray) else array.values
        numbers[:] = 7
    x["t"].values[:] = 7
    one.settle(counted)
    return made


def copies(means: dict[str, Any]) -> list[np.ndarray]:
    return [array.copy() if isinstance(array, np.ndarray) else array.flat() for array in means.values()]


def same_state(a: Any, b: Any) -> bool:
    """Whether two states are equal in every bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    return same_bits(a, b) if isinstance(a, np.ndarray) else a == b


def content(one: Averager) -> dict[str, Any]:
    """The state without buffers that hold nothing: a step that is put may make some."""
    state = one.state_dict()
    for kept in state["buffers"].values():
        for buffer in [key for key, x in kept.items() if not (x["values"] if isinstance(x, dict) else x).any()]:
            del kept[buffer]
    return {**state, "buffers": {name: kept for name, kept in state["buffers"].items() if kept}}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("scheme", "warmup", "more"), CASES)
def test_two_halves_are_one_commit(scheme: str, warmup: int, more: dict[str, Any], half: bool) -> None:
    def fn(comm: Communicator) -> None:
        whole, late = (averager(comm, scheme, warmup, decides_late=True, **more) for _ in range(2))
        for step in range(5):
            expected = make_step(whole, comm, step, half, late=False)
            found = make_step(late, comm, step, half, late=True)
            assert all(map(same_bits, found, expected))
            assert same_state(late.state_dict(), whole.state_dict())
            assert late.was_sparse == whole.was_sparse == (step >= warmup)

    run_ranks(2, fn)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("scheme", "warmup", "more"), CASES)
def test_a_step_that_did_not_count_leaves_everything_as_it_was(
    scheme: str, warmup: int, more: dict[str, Any], half: bool
) -> None:
    def fn(comm: Communicator) -> None:
        kept, tried = (averager(comm, scheme, warmup, decides_late=True, **more) for _ in range(2))
        for step in range(3):
            make_step(kept, comm, step, half, late=False)
            make_step(tried, comm, step, half, late=True)
        before, was_sparse = content(tried), tried.was_sparse
        make_step(tried, comm, 8, half, late=True, counted=False)
        assert same_state(content(tried), before)
        assert (tried.step, tried.was_sparse) == (3, was_sparse)
        for step in range(3, 5):
            expected = make_step(kept, comm, step, half, late=False)
            assert all(map(same_bits, make_step(tried, comm, step, half, late=True), expected))

    run_ranks(2, fn)


def test_a_step_with_rates_and_momenta_of_an_optimizer_can_be_undone() -> None:
    rate = [0.1]
    more: dict[str, Any] = {
        "rates": lambda: dict.fromkeys(NAMES, rate[0]),
        "momenta": lambda: dict.fromkeys(NAMES, 0.9),
    }

    def fn(comm: Communicator) -> None:
        one = averager(comm, f"{MIXED} | memory=gmc", decides_late=True, **more)
        make_step(one, comm, 0, False, late=True)
        before = one.state_dict()
        comm.barrier()
        rate[0] = 0.05
        comm.barrier()
        make_step(one, comm, 1, False, late=True, counted=False)
        assert same_state(one.state_dict(), before)

    run_ranks(2, fn)


def test_a_step_that_is_not_finite_may_count_and_changes_no_buffer() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, decides_late=True)
        make_step(one, comm, 0, False, late=True)
        before, x = one.state_dict(), given(comm, 1)
        x["w"][0] = np.nan
        one.put(x)
        assert not one.write_means(one.prepare())
        one.settle(True)
        assert same_state(one.state_dict(), {**before, "step": 2})

    run_ranks(1, fn)


def test_abandoning_is_not_counting() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, warmup=1, decides_late=True)
        make_step(one, comm, 0, False, late=True)
        before = content(one)
        one.put(given(comm, 1))
        one.write_means(one.prepare())
        assert one.was_sparse
        one.abandon()
        assert not one.was_sparse
        assert same_state(content(one), before)

    run_ranks(1, fn)


def test_nothing_else_happens_before_the_step_is_settled() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, decides_late=True)
        saved = one.state_dict()
        with pytest.raises(InputError, match="settle follows write_means"):
            one.settle(True)
        one.put(given(comm, 0))
        one.write_means(one.prepare())
        for call in (lambda: one.put(given(comm, 1)), one.state_dict, lambda: one.load_state_dict(saved)):
            with pytest.raises(InputError, match=r"settle\(counted\) before anything else"):
                call()
        one.settle(True)
        make_step(one, comm, 1, False, late=True)

    run_ranks(1, fn)


def test_an_engine_that_decides_late_says_so() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm)
        one.put(given(comm, 0))
        with pytest.raises(InputError, match="decides_late=True"):
            one.write_means(one.prepare())
        one.abandon()

    run_ranks(1, fn)


def test_a_host_adds_its_own_agreement_on_finiteness() -> None:
    """Ranks 0 and 1 are replicas of one shard, 2 and 3 of the other: all four skip what one of them spoils."""

    def fn(comm: Communicator) -> None:
        shard, asked = comm.split(comm.rank // 2), []

        def agree(finite: bool) -> bool:
            asked.append(finite)
            return not comm.all_reduce(np.array([not finite], np.uint8), "max").item()

        one = averager(shard, agree=agree)
        for step in range(3):
            before, x = one.state_dict(), gradients(shard, step)
            x["w"][3] = np.inf if step == 1 and comm.rank == 3 else 1
            one.put(x)
            assert one.finish() == (step != 1)
            assert asked[step] == (step != 1 or comm.rank < 2)
            if step == 1:
                assert same_state(one.state_dict(), {**before, "step": 2})

    run_ranks(4, fn)
