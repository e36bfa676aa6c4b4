"""The ranks of a group tell each other who failed first, and why, in a store that all of them can reach.

A rank whose collective is ended by the engine knows only that some rank has gone. It reads in the store which one, and
raises that rank's error instead of the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sparsewire.comm import Communicator
from sparsewire.comm.background import within
from sparsewire.errors import CommError, CommTimeout, PeerFailed

FAILED, LOST = "sparsewire-failed", "sparsewire-lost"  # who failed first, and why; a collective that the engine ended
LONGEST = 2000  # characters of a note
PATIENCE = 1.0  # seconds that the store has to answer


class Store(Protocol):
    """Texts by key that all ranks can read, as torch's stores are."""

    def compare_set(self, key: str, expected: str, desired: str, /) -> Any: ...

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...


class Notes:
    """Notes by key, of which the first counts. A store that fails, or does not answer in time, is not asked again.

    The store is in another process, on another machine: its calls wait for ever if that is stopped or cut off.
    """

    def __init__(self, store: Store | None) -> None:
        self._store: Any = store
        self._answers = store is not None

    def write(self, key: str, text: str) -> None:
        """Writes a note, unless there is one."""
        self._ask(lambda: self._store.compare_set(key, "", text[:LONGEST]))

    def read(self, key: str) -> str:
        """The note, or an empty text."""
        return str(self._ask(lambda: self._store.get(key).decode() if self._store.check([key]) else "") or "")

    def _ask(self, call: Callable[[], Any]) -> Any:
        if not self._answers:
            return None
        try:
            return within(PATIENCE, call, "the store of the process group")
        except (RuntimeError, CommTimeout):
            self._answers = False
            return None


class Failures:
    """What the ranks of one group say of their failures."""

    def __init__(self, rank: int, store: Store | None) -> None:
        self._rank, self._notes = rank, Notes(store)

    @property
    def any(self) -> bool:
        """Whether some rank has failed, or has lost another one."""
        return bool(self._notes.read(FAILED) or self._notes.read(LOST))

    def tell(self, error: BaseException) -> None:
        """Writes down that this rank fails, unless another rank was first."""
        self._notes.write(FAILED, f"rank {self._rank}: {type(error).__name__}: {error}")

    def first(self, error: BaseException) -> BaseException:
        """The error that this rank raises for one that it met, which the other ranks are told.

        A collective that the engine ended is not the beginning of the trouble: the rank that failed first says what is,
        if it could still write it down, and then nothing of the engine's is shown.
        """
        if type(error) is not CommError:
            self.tell(error)
        elif first := self._notes.read(FAILED):
            error = PeerFailed(f"another rank failed first: {first}")
            error.__suppress_context__ = True
        else:
            self._notes.write(LOST, str(error))
        return error


class GivenGroup:
    """A communicator that the user made and keeps, in the place of a group that a host makes for itself."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    @property
    def everyone(self) -> Communicator:
        """All ranks that must agree."""
        return self.comm

    def close(self) -> None:
        """Waits until all ranks have come this far."""
        self.comm.barrier()

    def fail(self, error: BaseException) -> BaseException:
        """The error to raise here."""
        return error

    def tell(self, error: BaseException) -> None:
        """Whoever made the communicator sees the error itself."""

    def leave(self) -> None:
        """The communicator stays the user's."""
