"""A call on a thread of its own: an exchange that goes on while the next local steps are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from sparsewire.comm import background

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """Calls a function at once, on its own thread; `result` waits for the call and returns or raises what it did."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call: Callable[[], Result] | None = call
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._thread = background.start(self._run, "sparsewire-exchange")

    def result(self) -> Result:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def wait(self, patience: float | None = None) -> None:
        """Waits for the call to end, with a result or an error; at most `patience` seconds."""
        self._thread.join(patience)

    def _run(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        try:
            self._results.append(call())
        except BaseException as error:
            self._error = error
