"""The server's side: a strategy around another one, which sees nothing but uncompressed weights."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from functools import partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Strategy

from sparsewire.codecs.scheme import Spec
from sparsewire.errors import InputError, UpdateRefused
from sparsewire.federated import Limits, Report, Server
from sparsewire.federated.coding import Coder
from sparsewire.federated.inbox import Update
from sparsewire.federated.model import DENSE_BELOW, Weights

from .records import STALE, replaced, to_message_record, to_record, to_weights
from .replies import cap_weights, read_reply, strategies, unlike_most, weight_key

log = logging.getLogger("flwr")


class Compressed(Strategy):
    """Any strategy of Flower's message API, with compressed messages both ways.

    The inner strategy chooses nodes and averages weights as ever. On the way down a node gets what it misses of the
    common weights. On the way up, a node's change is read and checked, and the inner strategy gets the weights that it
    leads to. What the inner strategy finds is compressed too: the common weights move by what all nodes will see of it.

    scheme_up, scheme_down (None: as up), dense, dense_below, limits, keep_rounds, seed: as in
    `sparsewire.federated.Server`. All clients need `sparsewire.flower.mod`.
    """

    def __init__(
        self, strategy: Strategy, scheme_up: Spec = "stc", scheme_down: Spec | None = None, *,
        dense: Iterable[str] = (), dense_below: int = DENSE_BELOW, limits: Limits | None = None,
        keep_rounds: int = 1000, seed: int = 0,
    ) -> None:  # fmt: skip
        if not isinstance(strategy, Strategy):
            raise InputError(f"a strategy of flwr.serverapp.strategy is needed, such as FedAvg(), not {strategy!r}")
        self.strategy = strategy
        both = scheme_up, scheme_up if scheme_down is None else scheme_down
        self.schemes = tuple(str(Coder.of(spec, seed).scheme) for spec in both)
        self._make = partial(
            Server, scheme_up=scheme_up, scheme_down=scheme_down, dense=tuple(dense), dense_below=dense_below,
            limits=limits, keep_rounds=keep_rounds, seed=seed,
        )  # fmt: skip
        self._server: Server | None = None
        self._common: ArrayRecord | None = None
        self._training = ""
        self._lost: set[int] = set()
        self._evaluated: list[int] = []  # sizes of the messages of this round's evaluation
        self.report: Report | None = None

    @property
    def server(self) -> Server:
        """The common weights and what is known of the nodes."""
        if self._server is None:
            raise InputError("the training has not begun: start() makes the server from the initial arrays")
        return self._server

    def summary(self) -> None:
        log.info("\t├──> sparsewire: up %s | down %s", *self.schemes)
        self.strategy.summary()

    # --- down ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._begin(server_round, arrays)
        for inner in strategies(self.strategy):
            if isinstance(inner, FedAvgM):
                inner.current_arrays = arrays  # not what it found itself, of which the nodes have seen a part
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        for message in messages:
            self._compress(message, arrays, asks=True)
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._begin(server_round, arrays)
        messages = list(self.strategy.configure_evaluate(server_round, arrays, config, grid))
        self._evaluated = [self._compress(message, arrays, asks=False) for message in messages]
        return messages

    def _begin(self, server_round: int, arrays: ArrayRecord) -> None:
        """Makes the server of a training's first arrays; later ones have to be what `aggregate_train` returned."""
        if arrays is self._common or arrays == self._common:
            return
        if self._server is not None and server_round != 1:
            raise InputError(
                f"round {server_round} has other arrays than the last round ended with: pass on what it returned"
            )
        self._server, self._common = self._make(to_weights(arrays)), arrays
        self._training, self._lost = secrets.token_hex(4), set()

    def _compress(self, message: Message, arrays: ArrayRecord, asks: bool) -> int:
        """Puts what the node misses in the arrays' place; its size."""
        node, base = message.metadata.dst_node_id, None
        if node in self._lost:
            base = -1
            self._lost.discard(node)
        key = _key_of(arrays, message.content)
        sent = self.server.broadcast(node, base=base, asks=asks)
        message.content = replaced(message.content, key, to_message_record(self._training, sent))
        return len(sent)

    # --- up ---

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = self.strategy.aggregate_train(server_round, self._decoded(replies))
        weights = None if arrays is None else self._fitted(to_weights(arrays))
        self.report = self.server.cancel_round() if weights is None else self.server.publish(weights)
        if self.report.applied:
            self._common = to_record(self.server.weights)
        return self._common if self.report.applied else None, _measured(metrics, self.report)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        for reply in replies:
            if not self._failed(reply):
                self.server.confirm(reply.metadata.src_node_id)
        metrics = self.strategy.aggregate_evaluate(server_round, replies)
        if not self._evaluated:
            return metrics
        dense = self.server.model.dense_bytes * len(self._evaluated)
        return _joined(metrics, {"bytes-down": sum(self._evaluated), "dense-bytes-down": dense})

    def _failed(self, reply: Message) -> bool:
        """Whether the reply has no content; notes who has lost the common weights."""
        if reply.has_error() and reply.error.code == STALE:
            self._lost.add(reply.metadata.src_node_id)
        return not reply.has_content()

    def _decoded(self, replies: Iterable[Message]) -> list[Message]:
        """Replies for the inner strategy: errors as they came, updates as weights, without those that are refused."""
        good, failed, refused = dict[int, tuple[Message, Update]](), list[Message](), dict[int, str]()
        for reply in replies:
            node = reply.metadata.src_node_id
            if self._failed(reply):
                failed.append(reply)
            elif node in good:
                refused[node] = "it has answered twice; its first answer counts"
            else:
                self._read(reply, good, refused)
        for node in unlike_most({node: reply.content for node, (reply, _) in good.items()}):
            refused[node] = "its arrays or metrics have other names or sizes than most clients'"
            del good[node]
        self._cap([reply.content for reply, _ in good.values()])
        self._note({node: update for node, (_, update) in good.items()}, refused)
        return [*(reply for reply, _ in good.values()), *failed]

    def _cap(self, contents: list[RecordDict]) -> None:
        key, ratio = weight_key(self.strategy), self.server.limits.examples_ratio
        if key is not None and ratio is not None:
            cap_weights(contents, key, ratio)

    def _read(self, reply: Message, good: dict[int, tuple[Message, Update]], refused: dict[int, str]) -> None:
        node = reply.metadata.src_node_id
        try:
            update, reply.content = read_reply(reply, self.server, weight_key(self.strategy))
            good[node] = reply, update
        except UpdateRefused as error:
            refused[node] = error.reason

    def _note(self, updates: dict[int, Update], refused: dict[int, str]) -> None:
        for node, update in updates.items():
            self.server.note(node, update)
        for node, reason in refused.items():
            log.warning("sparsewire: the update of node %d is refused: %s", node, reason)
            self.server.refuse(node, reason)

    def _fitted(self, weights: Weights) -> Weights | None:
        """The weights in the model's number types; None if some number is not finite."""
        if not all(np.isfinite(array).all() for array in weights.values()):
            log.error("sparsewire: %s has found weights that are not finite: the round is dropped", self.strategy)
            return None
        whole = {info.name: info for info in self.server.model.tensors if info.is_whole}
        return {
            name: whole[name].rounded(array).astype(whole[name].stored) if name in whole else array
            for name, array in weights.items()
        }


def _key_of(arrays: ArrayRecord, content: RecordDict) -> str:
    for key, record in content.array_records.items():
        if record is arrays or record == arrays:
            return key
    raise InputError("the inner strategy's messages do not carry the arrays as it got them: they cannot be compressed")


def _measured(metrics: MetricRecord | None, report: Report) -> MetricRecord:
    numbers: dict[str, int | list[int]] = {
        "bytes-up": report.bytes_up, "bytes-down": report.bytes_down, "dense-bytes-up": report.dense_bytes_up,
        "dense-bytes-down": report.dense_bytes_down, "counted": len(report.counted), "refused": len(report.refused),
    }  # fmt: skip
    if report.refused:
        numbers["refused-nodes"] = [int(node) for node in report.refused]
    return _joined(metrics, numbers)


def _joined(metrics: MetricRecord | None, numbers: dict[str, int | list[int]]) -> MetricRecord:
    return MetricRecord({**(metrics or {}), **{f"sparsewire-{name}": value for name, value in numbers.items()}})
