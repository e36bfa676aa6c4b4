"""Flower: strategies see plain weights, nodes have the common ones bit for bit, and nothing is lost on the way."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_grid import (
    EXACT,
    FIRST,
    NODES,
    LocalGrid,
    arrays,
    frame,
    learning_app,
    moved,
    run,
    same_bits,
    start,
    trained,
)
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Krum,
    Strategy,
)

from sparsewire.federated import Client, Server
from sparsewire.flower import Compressed
from sparsewire.flower.client import load_client

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"


@pytest.mark.parametrize(
    "inner",
    [
        lambda: FedAvg(fraction_train=0.5), FedProx, FedAdam, FedYogi, FedAvgM, FedMedian,
        lambda: Krum(num_malicious_nodes=1),
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 5.0, NODES),
    ],
)  # fmt: skip
def test_any_strategy_gets_weights_and_every_node_has_the_common_ones(inner: Callable[[], Strategy]) -> None:
    seen: list[Any] = []
    strategy = Compressed(inner(), EXACT, "topk(30%) | indices=rice | values=raw")
    _, result = run(strategy, app=learning_app(seen))
    common = strategy.server.weights
    assert same_bits(arrays(result.arrays), common)
    assert [array.dtype for array in common.values()] == [array.dtype for array in start().values()]
    assert list(common) == list(start()) and np.abs(common["w"]).max() > 0
    assert all(same_bits(weights, common) for weights in seen[-NODES:])
    assert len(seen) == 3 * NODES and strategy.report is not None and not strategy.report.refused


def test_without_loss_on_either_way_it_is_flowers_own_mean() -> None:
    plain, compressed = FedAvg(), Compressed(FedAvg(), "fedavg")
    _, expected = run(plain, app=learning_app(mods=[]))
    _, result = run(compressed)
    assert all(np.array_equal(arrays(result.arrays)[name], array) for name, array in arrays(expected.arrays).items())


def test_what_training_changed_is_applied_or_waits_in_a_residual_exactly() -> None:
    strategy = Compressed(FedAvg(), EXACT)
    grid, result = run(strategy, rounds=4)
    clients = [load_client(grid.context(node), strategy._training) for node in grid.get_node_ids()]
    waiting = [client.residual() for client in clients if client is not None]
    assert len(waiting) == NODES
    for name in ("w", "a"):
        done = sum(moved(node, turn)[name] for node in grid.get_node_ids() for turn in (1, 2, 3, 4)) / NODES
        left = sum(one[name] for one in waiting) / NODES + strategy.server.residual()[name]
        assert np.count_nonzero(left) and np.array_equal(arrays(result.arrays)[name].ravel() + -left, done.ravel())


def test_a_momentum_of_the_server_is_of_the_changes_alone() -> None:
    """Flower's FedAvgM goes on from the weights that it found; the nodes have seen a part of those."""
    inner = FedAvgM(server_momentum=0.5)
    run(Compressed(inner, "fedavg", EXACT), rounds=3)
    nodes = range(FIRST, FIRST + NODES)
    means = [-sum(moved(node, turn)["w"] for node in nodes) / NODES for turn in (1, 2, 3)]
    assert np.array_equal(inner.momentum_vector[1], means[2] + 0.5 * (means[1] + 0.5 * means[0]))


def test_nodes_that_were_not_chosen_for_rounds_are_brought_up_to_date_for_less_than_the_model() -> None:
    seen: list[Any] = []
    strategy = Compressed(FedAvg(fraction_train=0.25, fraction_evaluate=0.25), "topk(2%) | values=raw")
    grid, _ = run(strategy, rounds=12, app=learning_app(seen), nodes=8)
    sizes = {node: [len(frame(one)) for one in grid.down if one.metadata.dst_node_id == node] for node in grid.states}
    dense = strategy.server.model.dense_bytes
    assert all(first > dense > max(later, default=0) for first, *later in sizes.values())
    strategy.strategy = FedAvg()
    rest = list(strategy.configure_evaluate(12, strategy._common, ConfigRecord(), grid))  # type: ignore[arg-type]
    grid.send_and_receive(rest)
    assert all(same_bits(weights, strategy.server.weights) for weights in seen[-8:])


def test_evaluation_sees_the_weights_of_its_round_and_saves_the_next_message_down() -> None:
    at: list[dict[str, Any]] = []

    class Watching(FedAvg):
        def configure_evaluate(self, server_round: int, arrays_: Any, *rest: Any) -> Any:
            at.append(arrays(arrays_))
            return super().configure_evaluate(server_round, arrays_, *rest)

    seen: list[Any] = []
    grid, result = run(Compressed(Watching(), EXACT), app=learning_app(seen))
    assert all(same_bits(weights, at[number // NODES]) for number, weights in enumerate(seen))
    trains = [len(frame(one)) for one in grid.down if one.metadata.message_type == "train"]
    evaluates = [len(frame(one)) for one in grid.down if one.metadata.message_type == "evaluate"]
    assert max(trains[NODES:]) < 40 < min(evaluates)
    assert result.evaluate_metrics_clientapp[3]["sparsewire-bytes-down"] == sum(evaluates[-NODES:])
    assert result.evaluate_metrics_clientapp[3]["seen"] == 1.0


def test_the_state_in_the_context_is_all_that_a_client_needs() -> None:
    """Every message of a node is the one of a client that never left its process."""
    grid, _ = run(Compressed(FedAvg(), "stc(ratio=0.05)"), rounds=4)
    client, answers = Client(name=FIRST), iter([one for one in grid.up if one.metadata.src_node_id == FIRST])
    for message in [one for one in grid.down if one.metadata.dst_node_id == FIRST]:
        weights, answer = client.receive(frame(message)), next(answers)
        if message.metadata.message_type == "train":
            assert client.update(trained(weights, FIRST, message)) == frame(answer)


def test_metrics_say_what_went_over_the_wire() -> None:
    grid, result = run(Compressed(FedAvg(fraction_evaluate=0.0), "stc(ratio=0.02)"))
    metrics, dense = result.train_metrics_clientapp[3], Server(start()).model.dense_bytes * NODES
    assert metrics["sparsewire-bytes-up"] == sum(len(frame(one)) for one in grid.up[-NODES:])
    assert metrics["sparsewire-bytes-down"] == sum(len(frame(one)) for one in grid.down[-NODES:])
    assert metrics["sparsewire-dense-bytes-up"] == metrics["sparsewire-dense-bytes-down"] == dense
    assert (metrics["sparsewire-counted"], metrics["sparsewire-refused"], metrics["train_loss"]) == (NODES, 0, 0.5)
    assert result.evaluate_metrics_clientapp == {}


def test_the_example_learns_and_prints_what_it_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The app of examples/flower for eight rounds, on this grid in place of Flower's engine."""
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(EXAMPLE)
    described = pytest.importorskip("tomllib").loads((EXAMPLE / "pyproject.toml").read_text())
    settings = described["tool"]["flwr"]["app"]["config"] | {"num-server-rounds": 8}
    apps = {side: import_module(f"digits_app.{side}_app").app for side in ("client", "server")}
    random.seed(0)
    apps["server"](LocalGrid(apps["client"], 10, settings=settings), Context(1, 0, {}, RecordDict(), settings))
    pattern = r"8 rounds: ([\d.]+)\nup: .* bytes, ([\d.]+) times .*\ndown: .* bytes, ([\d.]+) times"
    found = re.search(pattern, capsys.readouterr().out)
    assert found is not None
    accuracy, up, down = map(float, found.groups())
    assert accuracy > 0.8 and up > 100 and down > 4
