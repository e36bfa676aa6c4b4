"""Messages of `sparsewire.federated` ⇄ Flower's records.

A message is one Array in an ArrayRecord, with a serialization type of its own: code that does not know it raises, and
does not average compressed bytes. The Array's name says which training the message belongs to; a run may have several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, RecordDict

from sparsewire.errors import HeaderError
from sparsewire.federated.model import Weights

STYPE = "sparsewire"
STALE = 7133  # code of a reply's error: the client is not where the server thinks, and needs all weights


@dataclass(frozen=True)
class MessageRecord:
    """A compressed message as it was found in a record: the record's key, the training, the bytes."""

    key: str
    training: str
    message: bytes


def to_message_record(training: str, message: bytes) -> ArrayRecord:
    return ArrayRecord({training: Array(dtype="uint8", shape=(len(message),), stype=STYPE, data=message)})


def find_message_record(content: RecordDict) -> MessageRecord | None:
    """The compressed message in a content, None without one; two are an error."""
    messages = [
        MessageRecord(key, name, array.data)
        for key, record in content.array_records.items()
        for name, array in record.items()
        if array.stype == STYPE and len(record) == 1
    ]
    if len(messages) > 1:
        raise HeaderError(f"compressed arrays under several keys: {', '.join(message.key for message in messages)}")
    return messages[0] if messages else None


def to_record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in weights.items()})


def to_weights(record: Mapping[str, Array]) -> Weights:
    return {name: array.numpy() for name, array in record.items()}


def replaced(content: RecordDict, key: str, record: Any) -> RecordDict:
    """A copy with another record under this key."""
    return RecordDict({**content, key: record})
