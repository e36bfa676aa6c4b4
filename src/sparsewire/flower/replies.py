"""Checks of clients' replies before the inner strategy sees them: anyone may have sent them.

Flower's own strategies end the whole run where replies do not look alike, and take a weight as it comes.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Strategy

from sparsewire.errors import FrameError, UpdateRefused
from sparsewire.federated import Server
from sparsewire.federated.inbox import Update
from sparsewire.federated.model import Model

from .records import MessageRecord, find_message_record, replaced, to_record


def strategies(strategy: Strategy) -> Iterator[Strategy]:
    """The strategy, and those that it wraps, as Flower's for differential privacy do."""
    inner: Any = strategy
    while isinstance(inner, Strategy):
        yield inner
        inner = getattr(inner, "strategy", None)


def weight_key(strategy: Strategy) -> str | None:
    """The strategy's name for a client's weight in the mean; None if its mean has no weights."""
    keys = (getattr(inner, "weighted_by_key", None) for inner in strategies(strategy))
    return next((key for key in keys if key is not None), None)


def read_reply(reply: Message, server: Server, weight: str | None) -> tuple[Update, RecordDict]:
    """(the update, the reply's content with the client's weights in its place), or an `UpdateRefused`."""
    node = reply.metadata.src_node_id
    message = _message(node, reply.content)
    if weight is not None:
        _check_weight(node, reply.content, weight, server.limits.max_examples)
    update = server.read(node, message.message)
    weights = _moved(node, server.model, update)
    return update, replaced(reply.content, message.key, to_record(weights.arrays()))


def _message(node: int, content: RecordDict) -> MessageRecord:
    try:
        message = find_message_record(content)
    except FrameError as error:
        raise UpdateRefused(node, str(error)) from error
    if message is None:
        raise UpdateRefused(node, "its reply has no compressed update: its app needs mods=[sparsewire.flower.mod]")
    return message


def _check_weight(node: int, content: RecordDict, key: str, most: int) -> None:
    for metrics in content.metric_records.values():
        weight = metrics.get(key)
        if not isinstance(weight, int | float) or not 0 < weight <= most:
            raise UpdateRefused(
                node, f"{key!r} in its metrics is {weight!r}; the server takes more than 0, up to {most} (max_examples)"
            )


def cap_weights(contents: Iterable[RecordDict], key: str, ratio: float) -> None:
    """Lets no reply weigh more than so many times the median of all: a weight is the node's own word."""
    records: list[Any] = [metrics for content in contents for metrics in content.metric_records.values()]
    if not records:
        return
    most = ratio * statistics.median_low([metrics[key] for metrics in records])
    for metrics in records:
        if metrics[key] > most:
            metrics[key] = type(metrics[key])(most)


def _moved(node: int, model: Model, update: Update) -> Model:
    """The client's weights, as the server sees them."""
    moved = model.minus(update.parts)
    if not moved.is_finite():
        raise UpdateRefused(node, "its update leads to weights that are not finite")
    return moved


def unlike_most(contents: Mapping[int, RecordDict]) -> list[int]:
    """The nodes whose arrays and metrics are of another form than most nodes'."""
    forms = {node: _form(content) for node, content in contents.items()}
    usual = Counter(forms.values()).most_common(1)
    return [node for node, form in forms.items() if form != usual[0][0]]


def _form(content: RecordDict) -> tuple[Any, ...]:
    """Names, shapes of arrays, lengths of metrics."""
    arrays = [(key, _sorted(record, lambda array: array.shape)) for key, record in content.array_records.items()]
    metrics = [(key, _sorted(record, np.shape)) for key, record in content.metric_records.items()]
    return (*sorted(arrays), *sorted(metrics))


def _sorted(record: Mapping[str, Any], shape: Callable[[Any], Any]) -> tuple[Any, ...]:
    return tuple(sorted((name, tuple(shape(value))) for name, value in record.items()))
