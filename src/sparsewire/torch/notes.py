"""What the ranks of a group tell each other in the group's store when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsewire.comm.background import within
from sparsewire.errors import CommTimeout

LONGEST = 2000  # characters of a note
PATIENCE = 1.0  # seconds that the store has to answer


class Notes:
    """Notes by key, of which the first counts. A store that fails, or does not answer in time, is not asked again.

    The store is in another process, on another machine: its calls wait for ever if that is stopped or cut off.
    """

    def __init__(self, store: Any) -> None:
        self._store, self._answers = store, store is not None

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
