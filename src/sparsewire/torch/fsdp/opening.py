"""`open_fsdp` makes a link of a sharded model: it reads the units, lets all ranks agree, makes replicas equal."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from sparsewire.errors import InputError
from sparsewire.training.agree import agree, refuse
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings

from ..checks import named_parameters
from ..ddp.choose import say
from ..ddp.fourier import fourier_for
from ..ddp.opening import Options, read_options
from ..optimizers import Fit
from .hook import FsdpHook
from .link import FsdpLink
from .private import Unit, find_units
from .replicas import ReplicaGroup, make_equal

logger = logging.getLogger("sparsewire")
CHECKPOINTED = "_checkpoint_wrapped_module"  # what torch's checkpoint_wrapper calls the module that it wraps


def open_fsdp(model: torch.nn.Module, options: Options) -> FsdpLink:
    """The link of a sharded model. Where this rank refuses a setting, the others are told and refuse as well."""
    units = find_units(model, plain_parameters)
    group = ReplicaGroup(units, options.replicas, options.timeout, "attach")
    try:
        named = {name: parameter for unit in units for name, parameter in unit.parameters.items()}
        try:
            recipe, settings, fit = _read(named, options, group)
            hook = FsdpHook(units, group.replicas)
        except Exception as error:
            refuse(group.comm, error)
            raise
        agree(group.comm, settings, named, layout(units, group))
        share(model, named, group)
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named.items()}
        say(recipe, group.comm.rank)
        return FsdpLink(
            names, group, settings, hook, fit, fourier_for(group.comm, [settings.schedule.scheme], names), recipe
        )
    except BaseException:
        group.leave()
        raise


def plain_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters by the names that they have in a model that is neither compiled nor checkpointed."""
    named = named_parameters(model).items()
    return {".".join(part for part in name.split(".") if part != CHECKPOINTED): parameter for name, parameter in named}


def _read(
    named: dict[str, torch.nn.Parameter], options: Options, group: ReplicaGroup
) -> tuple[Recipe, Settings, Fit | None]:
    if options.nodes is not None:
        raise InputError("a replica's shards are averaged by FSDP already: leave nodes out, or replicas")
    recipe, auto, settings, fit = read_options(named, options)
    if auto is not None:
        raise InputError("auto is for DDP: with replicas= name a scheme, or leave it out")
    if settings.schedule.scheme.exchange.uses_masks:
        raise InputError("masks of a pruned model are not cut into shards: leave support=mask out, or use DDP")
    settings = settings.of_part(group.grid.parts)
    if group.grid.parts > 1:
        settings = replace(settings, agree=group.agree, norm=group.norm)
    return recipe, settings, fit


def layout(units: list[Unit], group: ReplicaGroup) -> dict[str, Any]:
    """What all ranks must have alike beside their settings."""
    return {
        "replicas, shards": [len(group.grid.machines), group.grid.parts],
        "FSDP units": [unit.name for unit in units],
    }


def share(model: torch.nn.Module, named: dict[str, torch.nn.Parameter], group: ReplicaGroup) -> None:
    """Replicas begin alike, with the parameters and buffers of replica 0."""
    tensors: dict[str, torch.Tensor] = {
        **named,
        **{f"{name} (buffer)": tensor for name, tensor in model.named_buffers()},
    }
    differ = make_equal(group.across, tensors)
    if differ and group.across.rank == 0 and group.inside.rank == 0:
        logger.info("replicas were given replica 0's %s%s", ", ".join(differ[:3]), ", …" if len(differ) > 3 else "")
