"""The server's record of its open round and of its clients, and the report of a round that has ended."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

ClientId = str | int
STATE_VERSION = 2
MOST_STRANGERS, MOST_ID = 100, 256  # whom a report names among those who were not asked, and characters of a name


@dataclass(frozen=True)
class Report:
    """The outcome of a round. `applied` is false where the mean was not finite, or nobody was counted: no weight moved.

    repeated: clients that were counted and have sent another message, which was not. examples: of those that were
    counted, as they were weighted. strangers: refused messages of clients that were not asked; `refused` names the
    first hundred.
    """

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
    repeated: tuple[ClientId, ...] = ()
    strangers: int = 0


@dataclass
class ClientRecord:
    """A client: the last round whose model it has shown to have, and the last one in which it was counted, plus 1."""

    base: int | None = None
    counted: int = 0


@dataclass
class Round:
    """The round that is open."""

    asked: dict[ClientId, None] = field(default_factory=dict)  # in their order; a list would be searched
    counted: dict[ClientId, int] = field(default_factory=dict)  # and their examples
    refused: dict[ClientId, str] = field(default_factory=dict)
    norms: list[float] = field(default_factory=list)
    held: dict[ClientId, bytes] = field(default_factory=dict)  # messages that wait for a median of the round
    repeated: dict[ClientId, None] = field(default_factory=dict)
    strangers: int = 0
    cap: float | None = None  # the most examples that a client counts for, once it is known
    bytes_up: int = 0
    bytes_down: int = 0

    def refuse(self, client: ClientId, reason: str) -> None:
        """A message that is not counted; its client may have been counted already, or be anybody."""
        if client in self.counted:
            self.repeated[client] = None
        elif client in self.asked or client in self.refused:
            self.refused[client] = reason
        else:
            self._refuse_stranger(client, reason)

    def _refuse_stranger(self, client: ClientId, reason: str) -> None:
        self.strangers += 1
        if self.strangers <= MOST_STRANGERS and (isinstance(client, int) or len(client) <= MOST_ID):
            self.refused[client] = reason

    def count(self, client: ClientId, examples: int, norm: float, size: int) -> None:
        self.refused.pop(client, None)
        self.counted[client] = examples
        self.norms.append(norm)
        self.bytes_up += size

    def weight(self, examples: int) -> float:
        """The weight of a client that claims so many examples."""
        return examples if self.cap is None else min(examples, self.cap)

    def report(self, number: int, applied: bool, dense_bytes: int) -> Report:
        """The report of this round, of this number; `dense_bytes` are the model's."""
        taken = tuple(self.counted) if applied else ()
        return Report(
            round=number, counted=taken, refused=dict(self.refused), applied=applied, missing=self.missing,
            examples=int(sum(self.weight(self.counted[client]) for client in taken)),
            norm=statistics.median(self.norms) if self.norms else 0.0,
            bytes_up=self.bytes_up, bytes_down=self.bytes_down, dense_bytes_up=dense_bytes * len(self.counted),
            dense_bytes_down=dense_bytes * len(self.asked), repeated=tuple(self.repeated), strangers=self.strangers,
        )  # fmt: skip

    @property
    def missing(self) -> tuple[ClientId, ...]:
        return tuple(client for client in self.asked if client not in self.counted and client not in self.refused)
