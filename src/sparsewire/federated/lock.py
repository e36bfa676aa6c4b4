"""One lock for an object's methods: whatever threads call, one method runs after another."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")
Owner = TypeVar("Owner", bound="Locked")


class Locked:
    """Has a lock, which copies do not share."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())


def locked(method: Callable[Concatenate[Owner, Given], Result]) -> Callable[Concatenate[Owner, Given], Result]:
    """A method that no other thread's locked method interrupts."""

    @functools.wraps(method)
    def call(self: Owner, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with self._lock:
            return method(self, *args, **kwargs)

    return call
