"""Gradients of a model of the user's: `--live MODULE:FUNCTION` names a function that makes it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from ..errors import InputError
from ..kernels import Array
from . import measure
from .arrays import measurable

WANTED = "FUNCTION() returns (model, step): a torch module, and a function that does one training step"


def live_gradients(spec: str, steps: int, skip: int) -> dict[str, Array]:
    """What `sparsewire.torch.capture` records of `steps` training steps, after `skip` that are not looked at."""
    if not measure.has("torch"):
        raise InputError("--live needs torch: pip install torch")
    from ..torch import capture

    model, step = _made(_function(spec), spec)
    with capture(model, steps, skip=skip) as taken:
        while not taken.done:
            before = taken.seen
            step()
            if taken.seen == before:
                raise InputError(f"--live {spec}: no parameter of the model got a gradient: step() calls backward")
    return {name: measurable(array, f"{name} (--skip leaves first steps out)") for name, array in taken.arrays.items()}


def _function(spec: str) -> Callable[[], Any]:
    module, _, name = spec.partition(":")
    if not module or not name:
        raise InputError(f"--live {spec}: say MODULE:FUNCTION, such as train:make")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InputError(f"--live {spec}: no module {error.name} here or on PYTHONPATH") from None
    if not callable(found):
        raise InputError(f"--live {spec}: {module} has no function {name}")
    function: Callable[[], Any] = found
    return function


def _made(make: Callable[[], Any], spec: str) -> tuple[Any, Callable[[], object]]:
    import torch

    made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module) and callable(made[1])):
        raise InputError(f"--live {spec}: {WANTED}, not {type(made).__name__}")
    return made
