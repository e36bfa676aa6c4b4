"""How gradients get from a step of each backend into the link, and their means back into the step."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from sparsewire.errors import InputError


class Step(NamedTuple):
    """What comes back into the step: means, in the order of the gradients, and 1.0 where the step was sparse."""

    means: list[Any]
    sparse: Any


class Backend(Protocol):
    """A module of this folder."""

    def exchange(self, link: Any, names: Sequence[str], gradients: Sequence[Any], scale: Any) -> Step:
        """Called where the optimizer is applied, once for each trace of a compiled step."""

    def settle(self) -> None:
        """Waits until no step is on its way."""


def backend_for(name: str) -> Backend:
    """The module of a Keras backend."""
    if name not in ("tensorflow", "jax", "torch"):
        raise InputError(f"Keras trains on tensorflow, jax or torch, not on {name}: set KERAS_BACKEND to one of them")
    module: Any = importlib.import_module(f".{name}", __name__)
    return module
