"""Flower: a bad reply is refused by name, and whoever failed or lost its state comes back."""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flower_grid import (
    EXACT,
    FIRST,
    NODES,
    LocalGrid,
    Tamper,
    arrays,
    frame,
    learning_app,
    reply_to,
    run,
    same_bits,
    start,
    travelled,
)
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from host_ranks import missing

from sparsewire import InputError, SchemeError
from sparsewire.flower import Compressed, Limits, make_mod, mod
from sparsewire.flower.records import to_record

QUIET = {"fraction_evaluate": 0.0}


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged; Flower's logger does not pass it on."""
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def of(node: int, change: Callable[[Message], Any]) -> Tamper:
    """Changes the replies of one node."""

    def tamper(reply: Message) -> Iterable[Message]:
        return [reply] if reply.metadata.src_node_id != node else (change(reply) or [reply])

    return tamper


def flip(reply: Message) -> None:
    (array,) = reply.content.array_records["arrays"].values()
    data = bytearray(array.data)
    data[len(data) // 2] ^= 1
    array.data = bytes(data)


def metric(name: str, value: Any, record: str = "metrics") -> Callable[[Message], None]:
    def change(reply: Message) -> None:
        reply.content.setdefault(record, MetricRecord())[name] = value  # type: ignore[index, call-overload]

    return change


def put(key: str, record: Any) -> Callable[[Message], None]:
    return lambda reply: reply.content.__setitem__(key, record)


def replay() -> Callable[[Message], None]:
    first: list[Any] = []

    def change(reply: Message) -> None:
        first.append(reply.content["arrays"])
        reply.content["arrays"] = first[0] if len(first) > 1 else to_record(start())

    return change


def nothing(reply: Message) -> Iterable[Message]:
    return iter(())


HOSTILE = {
    "a changed byte": (flip, "checksum"),
    "plain arrays": (put("arrays", to_record(start())), r"mods=\[sparsewire.flower.mod\]"),
    "no arrays": (lambda reply: reply.content.pop("arrays") and None, "no compressed update"),
    "a weight of NaN": (metric("num-examples", float("nan")), "'num-examples' in its metrics is nan"),
    "a weight below zero": (metric("num-examples", -5), "is -5"),
    "a huge weight": (metric("num-examples", 1e30), "max_examples"),
    "another metric": (metric("more", 1.0), "other names or sizes"),
    "a list for a number": (metric("train_loss", [0.5, 0.5]), "other names or sizes"),
    "a second record of metrics": (metric("num-examples", 1, "second"), "other names or sizes"),
    "more arrays": (put("more", to_record(start())), "other names or sizes"),
    "an earlier round": (replay(), "an update of round 0, the server is at round 2"),
}


@pytest.fixture(scope="module")
def without() -> dict[str, Any]:
    """The weights of a training in which one node's replies never arrive."""
    _, result = run(Compressed(FedAvg(**QUIET), EXACT), tamper=of(FIRST + 2, nothing))
    return arrays(result.arrays)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_reply_is_refused_by_name_and_changes_nothing(
    name: str, without: dict[str, Any], told: pytest.LogCaptureFixture
) -> None:
    change, reason = HOSTILE[name]
    strategy = Compressed(FedAvg(**QUIET), EXACT)
    _, result = run(strategy, tamper=of(FIRST + 2, change))
    assert same_bits(arrays(result.arrays), without)
    metrics = result.train_metrics_clientapp[3]
    assert (metrics["sparsewire-refused"], metrics["sparsewire-refused-nodes"]) == (1, [FIRST + 2])
    assert strategy.report is not None and re.search(reason, strategy.report.refused[FIRST + 2])
    assert f"the update of node {FIRST + 2} is refused" in told.text


def test_a_second_answer_is_not_counted() -> None:
    strategy = Compressed(FedAvg(**QUIET), EXACT)
    _, result = run(strategy, tamper=of(FIRST, lambda reply: [reply, travelled(reply)]))
    _, once = run(Compressed(FedAvg(**QUIET), EXACT))
    assert same_bits(arrays(result.arrays), arrays(once.arrays))
    assert strategy.report is not None and strategy.report.repeated == (FIRST,) and not strategy.report.refused


def test_an_absurd_norm_is_refused() -> None:
    strategy = Compressed(FedAvg(**QUIET), EXACT, limits=Limits(max_norm=1e-3))
    _, result = run(strategy, rounds=1)
    assert result.train_metrics_clientapp[1]["sparsewire-refused"] == NODES
    assert not result.arrays and same_bits(strategy.server.weights, start())


def test_updates_of_a_round_that_nobody_averaged_are_not_lost() -> None:
    """The strategy returns nothing in round 1; what its nodes sent then is in their residuals again."""

    class Idle(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            found = super().aggregate_train(server_round, replies)
            return (None, None) if server_round == 1 else found

    everything = "topk(100%) | values=raw | memory=residual"
    _, idle = run(Compressed(Idle(**QUIET), everything), rounds=2)
    _, busy = run(Compressed(FedAvg(**QUIET), everything), rounds=2)
    assert all(np.array_equal(arrays(idle.arrays)[name], arrays(busy.arrays)[name]) for name in ("w", "a"))
    assert idle.train_metrics_clientapp[1]["sparsewire-bytes-up"] > 0


def test_a_strategy_that_finds_numbers_that_are_not_finite_costs_its_round(told: pytest.LogCaptureFixture) -> None:
    class Diverging(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            found, metrics = super().aggregate_train(server_round, replies)
            broken = {name: np.asarray(array * np.nan) for name, array in arrays(found).items()}
            return (to_record(broken) if server_round == 1 else found), metrics

    _, result = run(Compressed(Diverging(**QUIET), EXACT), rounds=2)
    assert [result.train_metrics_clientapp[turn]["sparsewire-counted"] for turn in (1, 2)] == [0, NODES]
    assert all(np.isfinite(array).all() for array in arrays(result.arrays).values())
    assert "the round is dropped" in told.text


def test_frames_of_equal_length_are_never_averaged() -> None:
    grid, _ = run(Compressed(FedAvg(**QUIET), "topk(10%) | indices=bitmap | values=raw"), rounds=1)
    size = statistics.mode(len(frame(one)) for one in grid.up)
    equal = [one for one in grid.up if len(frame(one)) == size]
    assert len(equal) > 1
    with pytest.raises(TypeError, match="sparsewire"):
        FedAvg().aggregate_train(1, equal)


# --- nodes that fail, forget, or do not know ---


def test_an_error_of_the_app_reaches_the_strategy_and_costs_one_turn() -> None:
    app, failed = learning_app(), list[str]()
    train = app._registered_funcs["train.default"]

    def sometimes(message: Message, context: Any) -> Message:
        if context.node_id == FIRST and message.content["config"]["server-round"] == 2:
            raise RuntimeError("out of memory")
        return train(message, context)

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            failed.extend(str(one.error.reason) for one in replies if one.has_error())
            return super().aggregate_train(server_round, replies)

    app._registered_funcs["train.default"] = sometimes
    strategy = Compressed(Watching(**QUIET), EXACT)
    _, result = run(strategy, app=app)
    assert failed == ["out of memory"]
    assert [result.train_metrics_clientapp[turn]["sparsewire-counted"] for turn in (1, 2, 3)] == [4, 3, 4]


def test_a_node_that_lost_its_state_is_told_so_and_gets_all_weights_next_time() -> None:
    strategy = Compressed(FedAvg(**QUIET), EXACT)

    class Restarting(LocalGrid):
        def send_and_receive(self, messages: Iterable[Message], **rest: Any) -> list[Message]:
            messages = list(messages)
            if messages and messages[0].content["config"]["server-round"] == 2:
                self.lose(FIRST)
            return super().send_and_receive(messages, **rest)

    grid = Restarting(learning_app(), NODES)
    result = strategy.start(grid, to_record(start()), num_rounds=3, timeout=1)
    assert [result.train_metrics_clientapp[turn]["sparsewire-counted"] for turn in (1, 2, 3)] == [4, 3, 4]
    (error,) = [one.error for one in grid.up if one.has_error()]
    assert "this client is at round -1" in str(error.reason)
    sizes = [len(frame(one)) for one in grid.down if one.metadata.dst_node_id == FIRST]
    assert sizes[1] < strategy.server.model.dense_bytes < sizes[2]


def test_one_run_may_have_several_trainings() -> None:
    strategy = Compressed(FedAvg(**QUIET), EXACT)
    grid, first = run(strategy)
    second = strategy.start(grid, to_record(start()), num_rounds=3, timeout=1)
    assert second.train_metrics_clientapp[1]["sparsewire-counted"] == NODES
    third = Compressed(FedAvg(**QUIET), EXACT).start(grid, first.arrays, num_rounds=1, timeout=1)
    assert third.train_metrics_clientapp[1]["sparsewire-counted"] == NODES


def test_arrays_that_are_not_those_of_the_last_round_are_an_error() -> None:
    strategy = Compressed(FedAvg(**QUIET), EXACT)
    grid, _ = run(strategy)
    with pytest.raises(InputError, match="round 4 has other arrays"):
        strategy.configure_train(4, to_record(start()), ConfigRecord(), grid)


# --- records ---


def test_keys_are_free_and_other_records_stay_as_they_are() -> None:
    app, extra = ClientApp(mods=[mod]), ArrayRecord([np.arange(3)])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        assert message.content["config"]["server-round"] == 1
        reply = reply_to(message, arrays(message.content.array_records["model"]), "trained")
        reply.content["notes"], reply.content["extra"] = ConfigRecord({"word": "here"}), extra
        return reply

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            content = next(iter(replies)).content
            assert content["extra"] == extra and content["notes"] == {"word": "here"}
            return content.array_records["trained"], None

    strategy = Compressed(Watching(arrayrecord_key="model", **QUIET), EXACT)
    _, result = run(strategy, rounds=1, app=app)
    assert same_bits(arrays(result.arrays), start())


def test_plain_messages_pass_and_a_plain_server_is_told(told: pytest.LogCaptureFixture) -> None:
    _, result = run(FedAvg(), rounds=1)
    assert np.abs(arrays(result.arrays)["w"]).max() > 0
    assert "its strategy needs Compressed(" in told.text


def test_a_reply_without_weights_says_what_is_needed() -> None:
    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    grid, _ = run(Compressed(FedAvg(**QUIET), EXACT), rounds=1, app=app)
    assert "needs one ArrayRecord with the names" in str(grid.up[0].error.reason)


def test_a_client_with_another_scheme_says_so() -> None:
    grid, _ = run(Compressed(FedAvg(**QUIET), EXACT), rounds=1, app=learning_app(mods=[make_mod("stc(ratio=0.5)")]))
    assert "give both the same" in str(grid.up[0].error.reason)


def test_settings_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="such as FedAvg"):
        Compressed("FedAvg", EXACT)  # type: ignore[arg-type]
    with pytest.raises(SchemeError):
        Compressed(FedAvg(), "topk(1%) | values=nothing")


def test_without_flower_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing(monkeypatch, "sparsewire.flower", "flwr") == (
        "sparsewire.flower needs Flower: pip install 'sparsewire[flower]'"
    )
