"""What ranks raise when one of them misbehaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsewire.comm import Communicator, run_ranks


def errors_of(size: int, fn: Callable[[Communicator], Any]) -> list[BaseException | None]:
    """What each rank raised; every rank goes on to the end."""

    def attempt(comm: Communicator) -> BaseException | None:
        try:
            fn(comm)
        except Exception as error:
            return error
        finally:
            comm.barrier()
        return None

    return run_ranks(size, attempt, timeout=20)
