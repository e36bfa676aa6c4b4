"""`Averager` between threads, without any framework: what a training keeps from step to step, and when it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from strategies import MEMORIES, same_bits
from trainings import NAMES, SCHEME, all_same, averager, gradients, put_groups, residuals, train

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice


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
            sent = comm.all_reduce(given[name]) - comm.all_reduce(kept.astype(np.float64))
            np.testing.assert_allclose(comm.size * taken[name], sent, atol=1e-4)
        assert "b" not in one.states.by_name  # smaller than dense_below

    run_ranks(3, fn)


def test_tensors_that_are_put_together_travel_as_one_message() -> None:
    def fn(comm: Communicator) -> None:
        train(averager(comm, sizes=NAMES), comm, range(1))
        assert comm.collectives == 1  # the frames, and behind them what is dense

    run_ranks(2, fn)


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


def test_a_state_of_another_memory_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        one = averager(comm)
        train(one, comm, range(1))
        with pytest.raises(InputError, match="residual, which memory=none does not keep"):
            averager(comm, "topk(5%) | memory=none").load_state_dict(one.state_dict())

    run_ranks(1, fn)
