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
class Sealed:
    """A message in its record, under a key."""

    key: str
    training: str
    message: bytes


def seal(training: str, message: bytes) -> ArrayRecord:
    return ArrayRecord({training: Array(dtype="uint8", shape=(len(message),), stype=STYPE, data=message)})


def find_sealed(content: RecordDict) -> Sealed | None:
    """The message in there, if there is one and no second."""
    found = [
        Sealed(key, name, array.data)
        for key, record in content.array_records.items()
        for name, array in record.items()
        if array.stype == STYPE and len(record) == 1
    ]
    if len(found) > 1:
        raise HeaderError(f"compressed arrays under several keys: {', '.join(one.key for one in found)}")
    return found[0] if found else None


def to_record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in weights.items()})


def to_weights(record: Mapping[str, Array]) -> Weights:
    return {name: array.numpy() for name, array in record.items()}


def replaced(content: RecordDict, key: str, record: Any) -> RecordDict:
    """A copy with another record under this key."""
    return RecordDict({**content, key: record})
