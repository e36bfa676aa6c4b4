"""Compression for a model that `accelerator.prepare` has wrapped, with every rank's state in `save_state`.

Objects given to `register_for_checkpointing` are saved once, from rank 0, for all; the state hooks run on every
process, after each has made the directory, so each rank writes its own file there.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from sparsewire.errors import InputError
from sparsewire.frames.codec import Spec

from .checkpoint.files import load, save
from .ddp.attach import attach
from .ddp.link import Link
from .optimizers import NOT_GIVEN, only_optimizers

if TYPE_CHECKING:
    from accelerate import Accelerator
elif find_spec("accelerate") is None:
    raise ImportError("sparsewire.torch.accelerate needs Accelerate: pip install accelerate")

HANDLES = "_sparsewire_state_hooks"


def attach_accelerate(
    accelerator: Accelerator, model: torch.nn.Module, scheme: Spec | None = None, **settings: Any
) -> Link:
    """Attaches to a model that `accelerator.prepare` returned.

    Scheme and `settings` are those of `attach`; `total_steps` counts optimizer steps. `optimizer` is by default what
    was prepared for the model, one or several; None switches that off. `scaler` is by default the accelerator's
    (`mixed_precision="fp16"`), so that residuals follow the loss scale. `accelerator.clip_grad_norm_` would clip what
    has waited together with the gradient: say its norm here, `clip_norm=`, which clips in time. From then on that call
    only measures this model's norm, and the loop stays as it is.

    From then on `accelerator.save_state(folder)` and `load_state(folder)` save and load every rank's own state in
    `folder/sparsewire` (for a second model `folder/sparsewire_1`, and so on). Call the link's `detach()` before
    `accelerator.end_training()`.
    """
    place, wrapped = _prepared(accelerator, model)
    usual = {"optimizer": only_optimizers(accelerator._optimizers, wrapped) or NOT_GIVEN, "scaler": accelerator.scaler}
    link = attach(wrapped, scheme, **{**usual, **settings})
    if link.settings.clip_norm is not None:
        _only_measure(accelerator, wrapped, link, link.settings.clip_norm)
    name = f"sparsewire_{place}" if place else "sparsewire"
    for handle in getattr(wrapped, HANDLES, ()):  # of a link that was detached
        handle.remove()
    handles = (
        accelerator.register_save_state_pre_hook(lambda models, weights, folder: save(link, Path(folder) / name)),
        accelerator.register_load_state_pre_hook(lambda models, folder: load(link, Path(folder) / name)),
    )
    setattr(wrapped, HANDLES, handles)
    return link


def _only_measure(accelerator: Accelerator, model: torch.nn.Module, link: Link, clip_norm: float) -> None:
    """The accelerator's `clip_grad_norm_` clips no gradient of this model as long as the link, which does, is there."""
    clip, own = accelerator.clip_grad_norm_, set(model.parameters())
    link.ignore_changes()  # measuring is clipping to infinity

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not link.attached or own.isdisjoint(given):
            return clip(given, max_norm, norm_type)
        if max_norm < clip_norm or norm_type != 2:
            raise InputError(
                f"clip_grad_norm_(…, {max_norm:g}, norm_type={norm_type:g}) after clip_norm={clip_norm:g} has clipped: "
                "give attach_accelerate the norm that is meant, of type 2"
            )
        return clip(given, math.inf, norm_type)

    accelerator.clip_grad_norm_ = clip_grad_norm_


def _prepared(accelerator: Accelerator, model: torch.nn.Module) -> tuple[int, DistributedDataParallel]:
    """The model's place among the accelerator's, which knows them without their wrappers, and its DDP wrapper."""
    wrapped = getattr(model, "_orig_mod", model)  # torch.compile goes around DDP
    if isinstance(wrapped, DistributedDataParallel):
        for place, known in enumerate(accelerator._models):
            if known is wrapped.module or known is wrapped:
                return place, wrapped
    raise InputError(
        f"attach_accelerate needs the model that accelerator.prepare returned, wrapped in DistributedDataParallel; "
        f"{type(model).__name__} is not it ({_processes(accelerator)})"
    )


def _processes(accelerator: Accelerator) -> str:
    if accelerator.num_processes == 1:
        return "there is one process; on CPU, start more with torchrun: `accelerate launch --cpu` starts only one"
    return f"{accelerator.num_processes} processes, {accelerator.distributed_type}"
