"""Jobs for ranks that tests launch."""

from __future__ import annotations

import os
import time
from typing import Any


def wait(worker: Any) -> None:
    """A job that must be ended: it waits for longer than any test does."""
    time.sleep(600)


def chatter(worker: Any) -> None:
    """A job that never stops to tell something."""
    while True:
        worker.emit(step=0)


def group_limit(worker: Any) -> float:
    """A job: for how many seconds its collectives wait."""
    import torch.distributed as dist

    from sparsewire.comm.groups import timeout_of

    assert dist.group.WORLD is not None
    limit = timeout_of(dist.group.WORLD)
    return limit.total_seconds() if limit else 0.0


def fail(worker: Any) -> None:
    """A job that fails with an error that has notes."""
    error = ValueError("no gradient\n  frame #0: somewhere")
    error.__notes__ = ["at step 3", "try again"]  # as add_note does, which Python 3.10 lacks
    raise error


def crash(worker: Any) -> None:
    """A job that ends its process without a word."""
    os._exit(7)
