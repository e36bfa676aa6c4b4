"""Counts of the collectives that a meeting makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsewire.comm import Communicator


def count_calls(comm: Communicator, at_call: Callable[[int, bool], None]) -> None:
    """Tells of every collective, by its number, before it begins and after it ends."""
    calls = iter(range(10**6))

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            number = next(calls)
            at_call(number, True)
            result = call(*args, **kwargs)
            at_call(number, False)
            return result

        return wrapped

    for name in ("all_gather", "all_reduce", "all_reduce_in_place", "broadcast"):
        setattr(comm, name, counted(getattr(comm, name)))
