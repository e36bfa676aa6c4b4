"""Gradients of a model of the user's: `--live MODULE:FUNCTION` names a function that makes it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from sparsewire.errors import InputError
from sparsewire.kernels import Array

from .. import measure
from ..arrays import measurable

WANTED = "FUNCTION() returns (model, step): a torch module, and a function that does one training step"


def live_gradients(spec: str, steps: int, skip: int) -> dict[str, Array]:
    """What `sparsewire.torch.capture` records of `steps` training steps, after `skip` that are not looked at."""
    if not measure.has("torch"):
        raise InputError("--live needs torch: pip install torch")
    from sparsewire.torch import capture

    model, step = make_live(spec)
    with capture(model, steps, skip=skip) as taken:
        while not taken.done:
            before = taken.seen
            step()
            if taken.seen == before:
                raise InputError(f"--live {spec}: no parameter of the model got a gradient: step() calls backward")
    return {name: measurable(array, f"{name} (--skip leaves first steps out)") for name, array in taken.arrays.items()}


def make_live(spec: str, option: str = "--live") -> tuple[Any, Callable[[], object]]:
    """The model and the training step that `MODULE:FUNCTION` returns."""
    import torch

    option_given = f"{option} {spec}"
    made = _function(spec, option_given)()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module) and callable(made[1])):
        raise InputError(f"{option_given}: {WANTED}, not {type(made).__name__}")
    return made


def is_distributed(model: Any) -> bool:
    """Whether a step of the model, or of a part of it, exchanges gradients."""
    from torch.nn.parallel import DistributedDataParallel

    return any(isinstance(module, DistributedDataParallel) for module in model.modules())


def _function(spec: str, option_given: str) -> Callable[[], Any]:
    module, _, name = spec.partition(":")
    if not module or not name:
        raise InputError(f"{option_given}: say MODULE:FUNCTION, such as train:make")
    if not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"{option_given}: {module} is no module's name; write it as for import, such as train:make")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise InputError(f"{option_given}: no module {error.name} here or on PYTHONPATH") from None
    if not callable(value):
        raise InputError(f"{option_given}: {module} has no function {name}")
    function: Callable[[], Any] = value
    return function
