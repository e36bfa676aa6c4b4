"""What a rank does with what it did not send. The state itself is an array per tensor that the caller holds."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Memory


@dataclass(frozen=True)
class NoMemory(Memory):
    """What was not sent is dropped."""

    id = "none"
    wire_id = 1
    keeps = False


@dataclass(frozen=True)
class Residual(Memory):
    """What was not sent is added to the next gradient (error feedback)."""

    id = "residual"
    wire_id = 2
    keeps = True


__all__ = ["NoMemory", "Residual"]
