"""Flower in one process: a grid whose nodes run a ClientApp at once. Messages and states travel as Flower's bytes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")  # skips the tests that import this module
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # Flower's command line, when it is imported
    from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Context as ContextProto
    from flwr.proto.message_pb2 import Message as MessageProto
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore.task_identity import TaskIdentity

    from sparsewire.flower import mod
    from sparsewire.flower.records import to_record

Tamper = Callable[[Message], Iterable[Message]]
CRASHED = 2
EXACT = "topk(10%) | indices=rice | values=raw"
NODES, FIRST = 4, 2**63


class LocalGrid(Grid):
    """`tamper` makes of each reply to a train message what arrives in its place; `sent` are all messages, both ways."""

    def __init__(
        self, app: ClientApp, nodes: int, tamper: Tamper = lambda reply: [reply], settings: dict[str, Any] | None = None
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.nodes, self.tamper, self.settings = app, nodes, tamper, settings or {}
        self.states = {node: self.fresh(node) for node in range(FIRST, FIRST + nodes)}
        self.down: list[Message] = []
        self.up: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.states)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [arrived for message in messages for arrived in self._one(travelled(message))]

    def _one(self, message: Message) -> Iterable[Message]:
        self.down.append(travelled(message))
        reply = self._answer(message)
        self.up.append(travelled(reply))
        return self.tamper(reply) if message.metadata.message_type == "train" else [reply]

    def _answer(self, message: Message) -> Message:
        """As Flower's nodes do: an exception becomes an error, and the state stays as it was."""
        node, asked = message.metadata.dst_node_id, travelled(message)
        context = self.context(node)
        try:
            reply = self.app(message, context)
        except Exception as error:
            return Message(Error(CRASHED, str(error)), reply_to=asked)
        self.states[node] = state(context)
        return travelled(reply)

    def context(self, node: int) -> Context:
        return context_from_proto(ContextProto.FromString(self.states[node]))

    def fresh(self, node: int) -> bytes:
        """The state of a node that knows nothing yet."""
        part = {"partition-id": node - FIRST, "num-partitions": self.nodes}
        return state(Context(1, node, part, RecordDict(), self.settings))

    def lose(self, node: int) -> None:
        self.states[node] = self.fresh(node)

    def set_run(self, run: Any) -> None: ...

    run = None  # type: ignore[assignment]

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def state(context: Context) -> bytes:
    return context_to_proto(context).SerializeToString()


def travelled(message: Message) -> Message:
    return message_from_proto(MessageProto.FromString(message_to_proto(message).SerializeToString()))


def frame(message: Message, key: str = "arrays") -> bytes:
    (array,) = message.content.array_records[key].values()
    assert array.stype == "sparsewire"
    return array.data


def arrays(record: ArrayRecord) -> dict[str, Any]:
    return {name: array.numpy() for name, array in record.items()}


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


def reply_to(message: Message, weights: dict[str, Any], key: str = "arrays", **metrics: Any) -> Message:
    told = MetricRecord({"num-examples": 10, **metrics})
    return Message(RecordDict({key: to_record(weights), "metrics": told}), reply_to=message)


# --- a training -------------------------------------------------------------------------------------------------------


def start() -> dict[str, Any]:
    """Names, sizes and types in an order that compression would not choose."""
    return {
        "z.bias": np.zeros(8, np.float32),
        "w": np.zeros((40, 10), np.float32),
        "batches": np.array(3),
        "a": np.zeros(300, np.float64),
    }


def moved(node: int, server_round: int) -> dict[str, Any]:
    """What training changes: multiples of 1/64, so that sums of a few are exact."""
    numbers = np.random.default_rng([node - FIRST, server_round])
    steps = {name: numbers.integers(-64, 64, array.shape) / 64 for name, array in start().items()}
    return steps | {"batches": np.array(4.0)}


def trained(weights: dict[str, Any], node: int, message: Message) -> dict[str, Any]:
    steps = moved(node, message.content.config_records["config"]["server-round"])
    return {name: np.asarray(array + steps[name]).astype(array.dtype) for name, array in weights.items()}


def learning_app(seen: list[Any] | None = None, mods: list[Any] | None = None) -> ClientApp:
    app = ClientApp(mods=[mod] if mods is None else mods)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        weights = arrays(message.content.array_records["arrays"])
        return reply_to(message, trained(weights, context.node_id, message), train_loss=0.5)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        if seen is not None:
            seen.append(arrays(message.content.array_records["arrays"]))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "seen": 1.0})}), reply_to=message)

    return app


def run(
    strategy: Strategy, rounds: int = 3, tamper: Tamper | None = None, app: ClientApp | None = None, nodes: int = NODES
) -> tuple[LocalGrid, Any]:
    random.seed(0)
    grid = LocalGrid(app or learning_app(), nodes, *([tamper] if tamper else []))
    return grid, strategy.start(grid, to_record(start()), num_rounds=rounds, timeout=1)
