"""A call on a thread of its own: an exchange that goes on while the next local steps are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sparsewire.comm import background

Result = TypeVar("Result")


class Errand(Generic[Result]):
    """Starts at once; `result` waits for it and gives what came of it, or raises."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call: Callable[[], Result] | None = call
        self._found: list[Result] = []
        self._error: BaseException | None = None
        self._thread = background.start(self._run, "sparsewire-errand")

    def result(self) -> Result:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def wait(self, patience: float | None = None) -> None:
        """Until it is done, however it ended; at most `patience` seconds."""
        self._thread.join(patience)

    def _run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            self._found.append(call())
        except BaseException as error:
            self._error = error
