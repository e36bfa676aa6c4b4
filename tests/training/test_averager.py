"""`Averager` between threads, without any framework: what a training keeps from step to step, and when it does not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strategies import BACKENDS, MEMORIES, make, same_bits, using
from trainings import NAMES, SCHEME, all_same, averager, gradients, put_groups, residuals, train

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError, PeerError
from sparsewire.exchange import rider
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.schedule import SchemeSchedule


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("warmup", [0, 3])
def test_a_resumed_training_equals_one_that_never_stopped(memory: str, warmup: int) -> None:
    scheme = f"topk(5%) | values=qsgd(5) | memory={memory}"

    def fn(comm: Communicator) -> None:
        whole, first, second = (averager(comm, scheme, warmup) for _ in range(3))
        expected = train(whole, comm, range(8))
        train(first, comm, range(5))
        second.load_state_dict(first.state_dict())
        assert all_same(train(second, comm, range(5, 8)), expected[5 * len(NAMES) :])
        state, other = whole.state_dict(), second.state_dict()
        for name, kept in state["buffers"].items():
            assert all(same_bits(kept[buffer], other["buffers"][name][buffer]) for buffer in kept)

    run_ranks(3, fn)


def test_every_gradient_is_sent_or_kept() -> None:
    def fn(comm: Communicator) -> None:
        one, given, taken = averager(comm), {}, {}
        for step in range(6):
            x = gradients(comm, step)
            for name, kept in x.items():
                given[name] = given.get(name, 0) + kept.astype(np.float64)
            one.put(x)
            one.finish()
            for name, kept in x.items():
                taken[name] = taken.get(name, 0) + kept.astype(np.float64)
        for name in NAMES:
            kept = residuals(one).get(name, np.zeros(NAMES[name], np.float32))
            owed = comm.all_reduce(given[name]) - comm.all_reduce(kept.astype(np.float64))
            np.testing.assert_allclose(comm.size * taken[name], owed, atol=1e-4)
        assert "b" not in one.states.by_name  # smaller than dense_below

    run_ranks(3, fn)


def test_tensors_that_are_put_together_travel_as_one_message() -> None:
    def fn(comm: Communicator) -> None:
        train(averager(comm, sizes=NAMES), comm, range(1))
        assert comm.collectives == 1  # the frames, and behind them what is dense

    run_ranks(2, fn)


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


@pytest.mark.parametrize("scheme", [SCHEME, "topk(k=0)", "one_sign(k=0) | memory=dgc"])
@pytest.mark.parametrize("name", ["w", "b"])
def test_a_step_that_is_not_finite_on_one_rank_changes_nothing(name: str, scheme: str) -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, scheme)
        train(one, comm, range(2))
        before, x = residuals(one), gradients(comm, 2)
        x[name][3] = np.inf if comm.rank == 1 else x[name][3]
        one.put(x)
        assert not one.finish()
        assert not np.isfinite(x[name]).all()
        assert all(same_bits(kept, before[key]) for key, kept in residuals(one).items())
        assert one.step == 3

    run_ranks(2, fn)


def failing_exchange(one: Averager) -> Callable[[], None]:
    """Makes the averager's next exchange fail, after selection."""

    def fail(*_: Any, **__: Any) -> Any:
        raise ConnectionError("lost")

    one.comm.all_gather = fail  # type: ignore[method-assign]
    return lambda: one.comm.__dict__.pop("all_gather")


@pytest.mark.parametrize("per", ["parameter", "bucket"])
def test_an_error_puts_everything_back(per: str) -> None:
    """Also what was held back because this rank has no gradient for it."""

    def fn(comm: Communicator) -> None:
        one = averager(comm, select_per=per)
        train(one, comm, range(2))
        before, x = residuals(one), gradients(comm, 2)
        x["w"][:] = 0
        mend = failing_exchange(one)
        with pytest.raises(ConnectionError):
            one.put(x)
        one.abandon()
        mend()
        assert before["w"].any()
        assert all(same_bits(kept, before[name]) for name, kept in residuals(one).items())
        train(one, comm, range(2, 4))

    run_ranks(1, fn)


@pytest.mark.parametrize("place", [0, 64, 299])
def test_a_gradient_is_looked_at_to_its_end_before_it_counts_as_none(place: int) -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm, "topk(k=1) | values=raw")
        train(one, comm, range(1))
        x = {name: np.zeros(size, np.float32) for name, size in NAMES.items()}
        x["w"][place] = 100
        before = residuals(one)
        one.put(x)
        one.finish()
        assert x["w"][place] == pytest.approx(100, rel=0.1)  # with its residual: it took part
        assert x["w"][place] == np.float32(100) + before["w"][place]
        assert same_bits(residuals(one)["v"], before["v"])  # no gradient: its residual waits

    run_ranks(1, fn)


def test_buffers_that_change_hands_stay_whole() -> None:
    """Engines regroup parameters; a join of before is not what a later join writes to."""

    def fn(comm: Communicator) -> None:
        joined, alone = (averager(comm, "threshold(value=1.5) | values=raw", select_per="bucket") for _ in range(2))
        for step, groups in enumerate([[["w", "v"]], [["v"], ["w"]], [["w", "v"]], [["v", "w"]], [["w", "v"]]]):
            kept = put_groups(joined, gradients(comm, step), groups)
            expected = put_groups(alone, gradients(comm, step), [["w"], ["v"]])
            assert all(same_bits(kept[name], expected[name]) for name in ("w", "v"))

    run_ranks(1, fn)


def test_small_parameters_between_compressed_ones_take_no_part() -> None:
    """They travel dense and keep nothing; a parameter without a gradient beside them keeps what it has."""

    def fn(comm: Communicator) -> None:
        joined, alone = (averager(comm, "threshold(value=1.5) | values=raw", select_per="bucket") for _ in range(2))
        for step in range(1, 7):
            for one, groups in ((joined, [["w", "b", "v"]]), (alone, [["w"], ["b"], ["v"]])):
                x = gradients(comm, step)
                x["w"][:] *= step % 2
                put_groups(one, x, groups)
            assert set(joined.states.by_name) == {"w", "v"}
            for name, kept in residuals(alone).items():
                assert kept.any() and same_bits(residuals(joined)[name], kept)

    run_ranks(2, fn)


def test_a_buffer_that_its_parameters_do_not_cover_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        one, flat = averager(comm), np.ones(600, np.float32)
        with pytest.raises(InputError, match="600 numbers for parameters of 300"):
            one.put_buffers([Buffer((Slice("w", 0, 300),), "float32", lambda: flat)])

    run_ranks(1, fn)


# --- the loss's scale ---


def test_buffers_follow_the_scale_and_a_state_is_loaded_in_the_present_one() -> None:
    def fn(comm: Communicator) -> None:
        scheme, scale = "topk(5%) | values=raw", [4.0]
        plain, scaled = averager(comm, scheme), averager(comm, scheme, scale=lambda: scale[0])
        for step, factor in enumerate([4.0, 8.0, 0.5]):
            scale[0] = factor
            train(plain, comm, range(step, step + 1))
            train(scaled, comm, range(step, step + 1), factor)
        without = averager(comm, scheme)
        without.load_state_dict(scaled.state_dict())
        scale[0] = 65536.0
        later = averager(comm, scheme, scale=lambda: scale[0])
        later.load_state_dict(plain.state_dict())
        for name, kept in residuals(plain).items():
            assert same_bits(residuals(scaled)[name], kept * np.float32(0.5))
            assert same_bits(residuals(without)[name], kept)
            assert same_bits(residuals(later)[name], kept * np.float32(65536))

    run_ranks(2, fn)


# --- what was not sent is sent in dense steps ---


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
        owed = comm.all_reduce(residuals(one)["w"]) / comm.size
        other = averager(comm, **changed[how])
        other.load_state_dict(one.state_dict())
        x = gradients(comm, 3)
        alone = comm.all_reduce(x["w"]) / comm.size
        other.put(x)
        other.finish()
        np.testing.assert_allclose(x["w"], alone + owed, atol=1e-5)
        assert not other.states.by_name.get("w", {}).get("residual", np.zeros(1)).any()

    run_ranks(2, fn)


def test_a_state_of_another_memory_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm)
        train(one, comm, range(1))
        with pytest.raises(InputError, match="residual, which memory=none does not keep"):
            averager(comm, "topk(5%) | memory=none").load_state_dict(one.state_dict())

    run_ranks(1, fn)


# --- clipping ---


HUGE = {"float32": 2.0**120, "float64": 2.0**600}  # their squares are beyond the type


def clipped_means(comm: Communicator, kind: str, scale: float, most: float) -> list[np.ndarray]:
    """Of a step in which everything is sent, with a table."""
    kept = np.dtype(kind).type(scale)
    x = {name: make("normal", size, kind, 10 * comm.rank + 1) * kept for name, size in NAMES.items()}
    table = sw.Sparse(np.array([1]), make("normal", 4, kind, comm.rank) * kept, (5, 4), width=4)
    one = averager(comm, "nonzero | values=raw | memory=none", clip_norm=most)
    one.put({**x, "table": table})
    assert one.finish()
    return [*x.values(), one.sparse_means["table"].work_values]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("most", [1.0, 1e-9])
def test_a_norm_that_overflows_is_clipped_as_any_other(kind: str, most: float, backend: str) -> None:
    """A gradient times a power of two is clipped to the same bits, by all kernels."""

    def fn(comm: Communicator) -> list[np.ndarray]:
        means = clipped_means(comm, kind, HUGE[kind], most)
        assert all_same(means, clipped_means(comm, kind, 1.0, most))
        total = sum(float((mean.astype(np.float64) ** 2).sum()) for mean in means)
        assert 0.1 * most < math.sqrt(total) <= most / math.sqrt(2) * (1 + 1e-6)
        return means

    with using(backend):
        found = run_ranks(2, fn)
    assert all_same(found[0], run_ranks(2, fn)[0])


def test_a_gradient_that_is_not_finite_is_not_clipped() -> None:
    def fn(comm: Communicator) -> None:
        one, x = averager(comm, clip_norm=1.0), gradients(comm, 0)
        x["w"][3] = np.nan if comm.rank else np.inf
        one.put(x)
        assert not one.finish()
        assert not np.isfinite(x["w"]).all()

    run_ranks(2, fn)


@pytest.mark.parametrize("memory", ["residual", "gain"])
@pytest.mark.parametrize("clip", [1.0, 1e6])
def test_each_ranks_gradient_is_clipped_before_it_is_compensated(clip: float, memory: str) -> None:
    scheme = f"topk(5%) | values=raw | memory={memory}"

    def fn(comm: Communicator) -> None:
        one, other = averager(comm, scheme, clip_norm=clip), averager(comm, scheme)
        for step in range(3):
            x, y = gradients(comm, step), gradients(comm, step)
            table = sw.Sparse(np.array([1]), make("normal", 4, "float32"), (5, 4), width=4)
            norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in [*y.values(), table.values]))
            factor = np.float32(min(1.0, clip / np.sqrt(comm.size) / norm))
            one.put({**x, "table": table})
            smaller = table.like(table.indices, table.values * factor)
            other.put({**{name: g * factor for name, g in y.items()}, "table": smaller})
            assert one.finish() and other.finish()
            for name, kept in residuals(other).items():
                np.testing.assert_allclose(residuals(one)[name], kept, atol=1e-5)
        assert one.stats()["bytes_dense"] == other.stats()["bytes_dense"]

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
