"""`allgather`: every rank gets every frame and adds them up in rank order."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import Exchange


@dataclass(frozen=True)
class AllGather(Exchange):
    """Frames from all to all."""

    id = "allgather"
    wire_id = 1
