"""`GuardedLink`: an error of this rank ends its part in the training, and the other ranks hear of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax

from sparsewire.comm import Communicator
from sparsewire.errors import SparsewireError, add_note

from .engine import tell


class GuardedLink:
    """What a host and its callbacks do with the communicator. `error` is what ended it, as it was raised."""

    def __init__(self, comm: Communicator, again: str) -> None:
        self.comm, self.attached = comm, True
        self.error: BaseException | None = None
        self._again = again  # what to write for another one
        self._thread: int | None = None  # which works now

    @property
    def connected(self) -> bool:
        """Whether the other ranks can be spoken to."""
        return self.attached and self.error is None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """What fails here is kept, and told."""
        if self.error is not None:
            raise self.error
        if not self.attached:
            raise SparsewireError(f"the link is detached: {self._again}")
        self._thread = threading.get_ident()
        try:
            yield
        except BaseException as error:
            self.error = error
            self.fail(error)
            tell(self.comm, error)
            raise
        finally:
            self._thread = None

    def fail(self, error: BaseException) -> None:
        """What else is to be done about it."""
        add_note(error, f"sparsewire: on rank {self.comm.rank}")

    def settle(self) -> None:
        """Waits for callbacks of jitted steps that are under way; raises what failed in one."""
        if self._thread == threading.get_ident():  # such as in on_step
            return
        wait_for_callbacks()
        if self.error is not None and self.attached:
            raise self.error

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, between steps."""
        self.settle()
        with self.guarded():
            return [bytes(part) for part in self.comm.all_gather(data, "state")]


def wait_for_callbacks() -> None:
    """Waits for those that have begun. What failed in one is kept by its link."""
    with suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()
