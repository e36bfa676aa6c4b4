"""What a server knows of its open round and of its clients, and the report of a round that has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

ClientId = str | int
STATE_VERSION = 1


@dataclass(frozen=True)
class Report:
    """What a round was. `applied` is false where the mean was not finite, or nobody was counted: no weight moved."""

    round: int
    counted: tuple[ClientId, ...]
    missing: tuple[ClientId, ...]
    refused: dict[ClientId, str]
    examples: int
    norm: float
    applied: bool
    bytes_up: int
    bytes_down: int
    dense_bytes_up: int
    dense_bytes_down: int


@dataclass
class Known:
    """A client: the last round whose model it has shown to have, and the last one in which it was counted, plus 1."""

    base: int | None = None
    counted: int = 0


@dataclass
class Round:
    """The round that is open."""

    asked: list[ClientId] = field(default_factory=list)
    counted: dict[ClientId, int] = field(default_factory=dict)  # and their examples
    refused: dict[ClientId, str] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    held: dict[ClientId, bytes] = field(default_factory=dict)  # messages that wait for the median of the norms
    bytes_up: int = 0
    bytes_down: int = 0
