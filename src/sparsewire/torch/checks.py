"""The DDP model inside what a user hands over, and its parameters by name."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from sparsewire.errors import InputError

from .fsdp.private import has_units

COMPILED = "_orig_mod"  # what torch.compile calls the module that it wraps
WRAPPED = (COMPILED, "_forward_module")  # the latter by Lightning Fabric


def find_ddp(model: torch.nn.Module) -> DistributedDataParallel:
    """The DDP model, which torch.compile or Lightning Fabric may have wrapped."""
    inner: Any = model
    while not isinstance(inner, DistributedDataParallel):
        wrapped = next((name for name in WRAPPED if name in getattr(inner, "_modules", ())), None)
        if wrapped is None and has_units(model):
            raise InputError('a model that FSDP2 has sharded needs its replicas: write attach(model, …, '
                             'replicas=mesh["replicate"])')  # fmt: skip
        if wrapped is None:
            raise InputError(f"attach needs a model wrapped in DistributedDataParallel, not {type(model).__name__}")
        inner = inner._modules[wrapped]
    return inner


def named_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Names as the module has them that was compiled, if any of it was."""
    return {uncompiled(name): parameter for name, parameter in module.named_parameters()}


def uncompiled(name: str) -> str:
    """A parameter's name in the module that was compiled."""
    return ".".join(part for part in name.split(".") if part != COMPILED)
