"""`select_per="model"` in training: steps, schedules, states, clipping and spoiled steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from competing import brute_force, compensated, compete, spy
from strategies import MEMORIES, make, same_bits
from trainings import NAMES, all_same, averager, gradients, put_groups, residuals, train

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.training.averager import Averager
from sparsewire.training.layout import Buffer, Slice
from sparsewire.training.residuals.reshard import reshard
from sparsewire.training.schedule import SchemeSchedule, Settings

Arrays = dict[str, np.ndarray]
RAW = "topk(5%) | values=raw"


# --- training ---


@pytest.mark.parametrize("memory", MEMORIES)
def test_each_rank_sends_the_largest_of_what_it_owes(memory: str) -> None:
    def fn(comm: Communicator) -> None:
        one = compete(comm, f"topk(5%) | values=raw | memory={memory}")
        for step in range(6):
            x = gradients(comm, step)
            x["v"] *= np.float32(0.01 if step % 2 else 3)
            total = compensated(one, x)
            expected = {name: np.zeros_like(unsent) for name, unsent in total.items()}
            for name, at in brute_force(total, 25).items():
                expected[name][at] = total[name][at]
            sent = spy(one)
            one.put(x)
            assert not sent  # everything waits for the last bucket
            assert one.finish()
            for name in expected:
                assert same_bits(sent[name].flat(), expected[name])

    run_ranks(2, fn)


def forgetting(one: Averager, x: Arrays) -> list[np.ndarray]:
    """A step without an edge."""
    one._model.load({})
    one.put(x)
    assert one.finish()
    return list(x.values())


@pytest.mark.parametrize("memory", ["residual", "dgc", "none"])
def test_the_edge_saves_the_second_pass_and_changes_nothing(memory: str) -> None:
    scheme = f"topk(5%) | values=qsgd(5) | memory={memory}"

    def fn(comm: Communicator) -> None:
        one, other = compete(comm, scheme), compete(comm, scheme)
        again = []
        for step in range(6):
            before = one.clock.seconds.get("select again")
            means = train(one, comm, range(step, step + 1))
            again.append(one.clock.seconds.get("select again") != before)
            assert all_same(means, forgetting(other, gradients(comm, step)))
        assert again[0] and not all(again[2:])
        assert all(same_bits(kept, residuals(other)[name]) for name, kept in residuals(one).items())

    run_ranks(2, fn)


@pytest.mark.parametrize("groups", [[["w", "v", "b"]], [["v"], ["b", "w"]], [["b"], ["v"], ["w"]]])
def test_how_parameters_are_bundled_does_not_matter(groups: list[list[str]]) -> None:
    def fn(comm: Communicator) -> None:
        one, other = compete(comm), compete(comm)
        for step in range(4):
            train(one, comm, range(step, step + 1))
            kept = put_groups(other, gradients(comm, step), groups)
            assert all(same_bits(kept[name], mine) for name, mine in residuals(one).items())

    run_ranks(2, fn)


@pytest.mark.parametrize("indices", ["rice", "bloom(0.2)"])
def test_buffers_that_share_one_staging_area_are_read_anew(indices: str) -> None:
    """Between the scan and the exchange other buckets have been converted where this one was."""
    scheme = f"topk(5%) | indices={indices} | values=raw"

    def fn(comm: Communicator) -> None:
        one, other, staging = compete(comm, scheme), compete(comm, scheme), np.empty(300, np.float32)
        for step in range(4):
            means = []
            for name, x in gradients(comm, step).items():
                if name != "b":
                    one.put_buffers([staged(name, x, staging)])
                    means.append(x)
            y = {name: x for name, x in gradients(comm, step).items() if name != "b"}
            for name, x in y.items():
                other.put({name: x})
            assert one.finish() and other.finish()
            assert all_same(means, list(y.values()))

    run_ranks(2, fn)


def staged(name: str, x: np.ndarray, staging: np.ndarray) -> Buffer:
    def take() -> np.ndarray:
        staging[: x.size] = x
        return staging[: x.size]

    return Buffer((Slice(name, 0, x.size),), "float32", take, lambda mean: np.copyto(x, mean), copies=True)


def scaled_training(comm: Communicator, steps: int, **settings: Any) -> tuple[Averager, Averager]:
    scale = [1.0]
    plain, scaled = compete(comm, **settings), compete(comm, scale=lambda: scale[0], **settings)
    for step in range(steps):
        scale[0] = 2.0 ** (10 * step)
        train(plain, comm, range(step, step + 1))
        train(scaled, comm, range(step, step + 1), scale[0])
    return plain, scaled


def test_the_edge_follows_the_losss_scale() -> None:
    def fn(comm: Communicator) -> None:
        plain, scaled = scaled_training(comm, 4)
        factor = scaled.scale
        assert scaled._model.edge == plain._model.edge * factor > 0
        for name, kept in residuals(plain).items():
            assert same_bits(residuals(scaled)[name], kept * np.float32(factor))
        other = compete(comm)
        other.load_state_dict(scaled.state_dict())
        assert other._model.saved() == plain._model.saved()

    run_ranks(2, fn)


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_resumed_training_equals_one_that_never_stopped(warmup: int) -> None:
    def fn(comm: Communicator) -> None:
        whole, first, second = (compete(comm, warmup=warmup) for _ in range(3))
        expected = train(whole, comm, range(8))
        train(first, comm, range(5))
        second.load_state_dict(first.state_dict())
        assert second._model.saved() == first._model.saved()
        assert all_same(train(second, comm, range(5, 8)), expected[5 * len(NAMES) :])
        assert second.state_dict()["selection"] == whole.state_dict()["selection"]

    run_ranks(2, fn)


@pytest.mark.parametrize("size", [1, 3])
def test_another_number_of_ranks_goes_on_from_it(size: int) -> None:
    def before(comm: Communicator) -> dict[str, Any]:
        one = compete(comm)
        train(one, comm, range(3))
        return one.state_dict()

    resharded = reshard(run_ranks(2, before), size)

    def after(comm: Communicator) -> None:
        one, other = compete(comm), compete(comm)
        one.load_state_dict(resharded[comm.rank])
        other.load_state_dict({**resharded[comm.rank], "selection": {}})
        assert one._model.edge > 0 == other._model.edge
        assert all_same(train(one, comm, range(3, 6)), train(other, comm, range(3, 6)))

    run_ranks(size, after)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_an_edge_that_is_none_is_not_gone_by(bad: float) -> None:
    def fn(comm: Communicator) -> None:
        one, other = compete(comm), compete(comm)
        train(one, comm, range(2))
        state = one.state_dict()
        other.load_state_dict({**state, "selection": {"edge": bad, "size": -1}})
        assert all_same(train(other, comm, range(2, 4)), train(one, comm, range(2, 4)))

    run_ranks(1, fn)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_spoiled_step_is_seen_by_all_and_leaves_everything_as_it_was(value: float) -> None:
    def fn(comm: Communicator) -> None:
        one, other = compete(comm), compete(comm)
        train(one, comm, range(3))
        train(other, comm, range(3))
        before, x = residuals(one), gradients(comm, 3)
        if comm.rank == 1:
            x["w"][:] = value
            x["v"][7] = value
        one.put(x)
        assert not one.finish()
        assert not all(np.isfinite(mean).all() for mean in x.values())
        assert all(same_bits(kept, before[name]) for name, kept in residuals(one).items())
        assert all_same(train(one, comm, range(4, 6)), train(other, comm, range(4, 6)))

    run_ranks(2, fn)


def test_an_error_while_it_is_sent_puts_everything_back() -> None:
    def fn(comm: Communicator) -> None:
        one, other = compete(comm), compete(comm)
        train(one, comm, range(2))
        train(other, comm, range(2))
        x = gradients(comm, 2)
        x["w"][:] = 0
        one._run = lambda *_: [][1]  # type: ignore[method-assign]
        one.put(x)
        with pytest.raises(IndexError):
            one.finish()
        one.abandon()
        del one._run
        assert all(same_bits(kept, residuals(other)[name]) for name, kept in residuals(one).items())
        assert all_same(train(one, comm, range(2, 4)), train(other, comm, range(2, 4)))

    run_ranks(1, fn)


def test_parameters_without_a_gradient_and_sparse_ones_take_no_part() -> None:
    def fn(comm: Communicator) -> None:
        one = compete(comm, "topk(k=30) | values=raw")
        for step in range(4):
            x = gradients(comm, step)
            x["w"][:] *= step % 2 == 0
            total = compensated(one, x)
            before = residuals(one)
            if step % 2:
                total["w"][:] = 0
            table = sw.Sparse(np.array([1, 3]), make("normal", 8, "float32", step), (5, 4), width=4)
            sent = spy(one)
            one.put({**x, "table": table})
            assert one.finish()
            assert sent["table"].count == 2
            assert {name: sent[name].indices.tolist() for name in total} == {
                name: at.tolist() for name, at in brute_force(total, 30).items()
            }
            if step % 2:
                assert sent["w"].count == 0 and same_bits(residuals(one)["w"], before["w"])

    run_ranks(2, fn)


@pytest.mark.parametrize("settings", [{"clip_norm": 1.0}, {"warmup": 2}, {"dense_names": frozenset({"v"})}])
def test_it_goes_with_the_other_settings(settings: dict[str, Any]) -> None:
    """A model of one tensor selects as ever."""

    def fn(comm: Communicator) -> None:
        one, other = (averager(comm, RAW, select_per=per, **settings) for per in ("model", "parameter"))
        for step in range(5):
            means = []
            for each in (one, other):
                x = {name: g for name, g in gradients(comm, step).items() if name != "w"}
                each.put(x)
                assert each.finish()
                means.append(list(x.values()))
            assert all_same(*means)

    run_ranks(2, fn)


def test_another_ratio_in_every_step() -> None:
    def fn(comm: Communicator) -> None:
        ratios = [0.1, 0.01, 0.5, 1.0, 0.002, 0.3]
        schedule = SchemeSchedule(sw.scheme("topk(5%) | values=raw"), 0, ratios.__getitem__)
        one = Averager(comm, Settings(schedule, dense_below=10, select_per="model"))
        for step, ratio in enumerate(ratios):
            sent = spy(one)
            train(one, comm, range(step, step + 1))
            assert sum(part.count for part in sent.values()) == max(1, round(ratio * 500))

    run_ranks(2, fn)


def test_tensors_of_several_dtypes_compete() -> None:
    def fn(comm: Communicator) -> None:
        one = compete(comm, "topk(k=3) | values=raw | memory=none")
        for step in range(3):
            x = {"a": np.zeros(20, np.float32), "b": np.zeros(20), "c": np.zeros(20, np.float32)}
            x["a"][3], x["b"][4], x["c"][[5, 9]] = 1.5 + step, -1.5 - step, (1.5 + step, 1.25)
            sent = spy(one)
            one.put(x, {"a": "float32", "b": "float64", "c": "bfloat16"})
            assert one.finish()
            assert {name: part.indices.tolist() for name, part in sent.items()} == {"a": [3], "b": [4], "c": [5]}

    run_ranks(2, fn)
