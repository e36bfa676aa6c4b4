"""`open_link` makes a link from the arguments of `attach`: it chooses, checks, lets the ranks agree, and connects."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from sparsewire.codecs.scheme import Spec
from sparsewire.planning.auto import Auto
from sparsewire.training.agree import agree, refuse
from sparsewire.training.options import StepOptions
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings
from sparsewire.training.settings import excluded, is_positive

from ..checks import find_ddp, named_parameters
from ..group import CommGroup
from ..optimizers import Fit, Given, check_follow_rate, fit_optimizers, read_optimizers
from ..prune import find_masks, masked
from .auto_link import AutoLink, auto_settings, open_controller
from .choose import auto_of, choose, say
from .fourier import fourier_for
from .hook import HookState, free_hook
from .link import Link

Named = dict[str, torch.nn.Parameter]


@dataclass(frozen=True, kw_only=True)
class Options(StepOptions):
    """The arguments of `attach`, which documents them."""

    scheme: Spec | Auto | None
    optimizer: Given
    follow_rate: bool
    scaler: torch.amp.GradScaler | None
    timeout: float | None
    on_divergence: str | None
    replicas: Any


@dataclass(frozen=True)
class LinkPlan:
    """What this rank will do, if the others agree."""

    recipe: Recipe
    auto: Auto | None
    settings: Settings
    fit: Fit | None
    hook: HookState


def open_link(model: torch.nn.Module, options: Options) -> Link:
    """The link of a DDP model. Where this rank refuses, the others are told and refuse as well."""
    wrapped = find_ddp(model)
    named = dict(named_parameters(wrapped.module))
    group = CommGroup(wrapped.process_group, options.timeout if is_positive(options.timeout) else None)
    try:
        try:
            plan = _plan(wrapped, named, options)
        except Exception as error:
            refuse(group.comm, error)
            raise
        auto, settings = plan.auto, plan.settings
        agree(group.comm, settings, named, {"auto": auto and str(auto), **masked(settings, named)})
        return _connect(named, group, plan)
    except BaseException:
        group.leave()
        raise


def _plan(wrapped: torch.nn.parallel.DistributedDataParallel, named: Named, options: Options) -> LinkPlan:
    recipe, auto, settings, fit = read_options(named, options)
    if settings.schedule.scheme.exchange.uses_masks:
        settings = replace(settings, masks=find_masks(named, wrapped.module))
    return LinkPlan(recipe, auto, settings, fit, free_hook(wrapped))


def read_options(named: Named, options: Options) -> tuple[Recipe, Auto | None, Settings, Fit | None]:
    """What the arguments come to for these parameters: chosen, and checked as far as one rank can."""
    behind, dense = read_optimizers(options.optimizer), excluded(named, options.exclude)
    recipe = choose(options, behind, named, dense)
    auto = auto_of(options.scheme, recipe)
    settings = options.settings_by(
        recipe,
        named,
        dense,
        scheme=None if auto is None else auto.plans[0],
        scaler=options.scaler,
        timeout=options.timeout,
    )
    settings = replace(settings, on_divergence=options.on_divergence)
    if auto is not None:
        settings = auto_settings(settings, auto)
    fit = fit_optimizers(behind, settings, named)
    check_follow_rate(options.follow_rate, fit)
    if fit is not None:
        settings = replace(settings, momenta=fit.momenta, rates=fit.rates, follow_rate=options.follow_rate)
    return recipe, auto, settings, fit


def _connect(named: Named, group: CommGroup, plan: LinkPlan) -> Link:
    recipe, auto, settings = plan.recipe, plan.auto, plan.settings
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named.items()}
    fourier = fourier_for(group.comm, [settings.schedule.scheme] if auto is None else auto.plans, names)
    say(recipe, group.comm.rank)
    if auto is None:
        return Link(names, group, settings, plan.hook, plan.fit, fourier, recipe)
    controller = open_controller(group, auto, settings, sum(parameter.numel() for parameter in names))
    return AutoLink(names, group, settings, plan.hook, plan.fit, fourier, controller, recipe)
