"""Flower: what one node's word weighs, and a node whose state is damaged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flower_grid import EXACT, FIRST, NODES, LocalGrid, arrays, learning_app, run, same_bits, start
from flwr.app import Array, ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg

from sparsewire.flower import Compressed, Limits
from sparsewire.flower import client as flower_client
from sparsewire.flower.client import ARRAYS, TREE
from sparsewire.flower.records import to_record


def claimed(examples: int, **settings: Any) -> dict[str, Any]:
    """The weights after a round in which one node claims so many examples, the others one each."""

    def tamper(reply: Message) -> Iterable[Message]:
        mine = reply.metadata.src_node_id == FIRST + 2
        reply.content.metric_records["metrics"]["num-examples"] = examples if mine else 1
        return [reply]

    _, result = run(Compressed(FedAvg(fraction_evaluate=0.0), EXACT, **settings), rounds=1, tamper=tamper)
    return arrays(result.arrays)


def test_a_node_that_claims_a_billion_examples_weighs_ten_times_the_median() -> None:
    assert same_bits(claimed(10**9), claimed(10))
    assert not same_bits(claimed(9), claimed(10))


def test_without_a_cap_a_node_weighs_what_it_claims() -> None:
    free = Limits(examples_ratio=None)
    assert not same_bits(claimed(10**9, limits=free), claimed(10, limits=free))


class Damaging(LocalGrid):
    """Damages the first node's state once, after the first round."""

    damage: str
    done = False

    def context(self, node: int) -> Any:
        context = super().context(node)
        if node == FIRST and TREE in context.state and not self.done:
            self.done = True
            spoil(context, self.damage)
        return context


def spoil(context: Any, damage: str) -> None:
    if damage == "arrays":
        context.state[ARRAYS] = ArrayRecord({"a0": Array(np.zeros(3))})
    else:
        tree = {"text": "{", "pairs": '{"$map": [[1, 2], 3]}', "empty": "{}"}[damage]
        context.state.config_records[TREE]["tree"] = tree


@pytest.mark.parametrize("damage", ["text", "pairs", "arrays", "empty"])
def test_a_node_with_a_damaged_state_begins_anew(damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    monkeypatch.setattr(flower_client.log, "warning", lambda text, *rest: told.append(text % rest))
    grid = Damaging(learning_app(), NODES)
    grid.damage = damage
    strategy = Compressed(FedAvg(fraction_evaluate=0.0), EXACT)
    result = strategy.start(grid, to_record(start()), num_rounds=3, timeout=1)
    assert [result.train_metrics_clientapp[turn]["sparsewire-counted"] for turn in (1, 2, 3)] == [4, 3, 4]
    assert len(told) == 1 and "this node's state is damaged, and begins anew" in told[0]
