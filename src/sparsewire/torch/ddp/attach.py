"""`attach`: switches compression on for a DDP model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec
from sparsewire.planning.auto import Auto
from sparsewire.training.agree import agree, refuse
from sparsewire.training.recipe import COVERAGE
from sparsewire.training.schedule import Ratios
from sparsewire.training.settings import Exclude, excluded, is_positive, read_settings

from ..checks import find_ddp, named_parameters
from ..group import CommGroup
from ..optimizers import NOT_GIVEN, Given, check_follow_rate, fit_optimizers, read_optimizers
from ..prune import find_masks, masked
from .auto_link import AutoLink, auto_settings, open_controller
from .choose import auto_of, choose, say, sparse_ones
from .fourier import fourier_for
from .hook import free_hook
from .link import Link


def attach(
    model: torch.nn.Module,
    scheme: Spec | Auto | None = None,
    *,
    optimizer: Given = NOT_GIVEN,
    total_steps: int | None = None,
    coverage: float = COVERAGE,
    ratio: float | None = None,
    memory: str | Memory | None = None,
    select_per: str | None = None,
    dense_below: int = 1024,
    exclude: Exclude = (),
    warmup_steps: int = 0,
    ratio_schedule: Ratios | None = None,
    follow_rate: bool = False,
    clip_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    timeout: float | None = None,
    nodes: int | str | None = None,
) -> Link:
    """Compresses the model's gradients from the next backward on. Every rank calls it, with the same arguments.

    model: wrapped in DistributedDataParallel; torch.compile or Lightning Fabric may be around that.
    scheme: None chooses everything by the optimizer and total_steps, and rank 0 logs the choice (`link.recipe`). Or a
        string, dict or `Scheme`, e.g. "topk(1%) | indices=rice | values=qsgd(bits=7)", whose memory is chosen if it
        names none; or "auto" (`Auto`): dense or compressed, whichever is faster here, measured while it runs.
    optimizer: the one that trains the model, or a list of them. It decides on the memory, as exactly one of the two may
        hold the momentum. SGD stays as it is; the first moment of Adam and its relatives is left out within their
        steps for parameters that travel sparse. None: not known; may be left out if the scheme names its memory.
    total_steps: optimizer steps of the whole run. The ratio is coverage / total_steps, within 0.1 % … 100 %: a coverage
        is how often each coordinate is sent on average. Without it the ratio is 5 %.
    ratio, memory: instead of those that would be chosen; ratio is the mean, where a schedule is chosen.
    select_per: "parameter", or "bucket" to let parameters in one DDP bucket compete for the selection, or "model" for
        one threshold over all of them (with topk); the exchange then waits for the last bucket. None: as chosen.
    dense_below, exclude: parameters smaller than this, or whose name matches a pattern (or for which a function of
        name and parameter is true), travel dense, all in one all_reduce.
    warmup_steps: dense steps at the beginning. ratio_schedule: a function of the step after them, or (until, ratio)
        pairs such as `dgc_schedule` gives, which do not go below the scheme's own ratio; None or beyond the last pair:
        that ratio.
    follow_rate: what waits to be sent moves the weights as far as it would have done, whatever the optimizer's learning
        rate is when it is sent; for SGD with memory=residual or dgc.
    clip_norm: clips each rank's gradient to clip_norm/√ranks before what was not sent is added, as DGC does; the
        exchange then waits for the last bucket. Clipping after backward would clip the compensated sum.
    scaler: the GradScaler that the loss goes through, if one does: residuals then follow its scale as it changes.
    seed: for everything random. on_step: called after each step with a dict, on the communication thread.
    timeout: seconds that a collective may wait for a rank; by default as long as the model's own process group.
    nodes: "auto", or how many ranks one after another share a machine: these average dense among themselves first, and
        each compresses and exchanges one part of every parameter with its like on the other machines.

    A setting that one rank refuses is an error on every rank, at once.
    """
    wrapped = find_ddp(model)
    named = named_parameters(wrapped.module)
    group = CommGroup(wrapped.process_group, timeout if is_positive(timeout) else None)
    try:
        try:
            behind, dense = read_optimizers(optimizer), excluded(named, exclude)
            recipe = choose(
                scheme, optimizer, behind, sparse_ones(behind, named, dense, dense_below), total_steps=total_steps,
                coverage=coverage, ratio=ratio, memory=memory, select_per=select_per, ratio_schedule=ratio_schedule,
            )  # fmt: skip
            auto = auto_of(scheme, recipe)
            first: Any = recipe.scheme if auto is None else auto.plans[0]
            settings = read_settings(
                named, first, recipe.select_per, dense_below, lambda name, _: name in dense, warmup_steps,
                recipe.ratio_schedule, scaler, seed, on_step, timeout, clip_norm, nodes,
            )  # fmt: skip
            if auto is not None:
                settings = auto_settings(settings, auto)
            fit = fit_optimizers(behind, settings, named)
            check_follow_rate(follow_rate, fit)
            if fit is not None:
                settings = replace(settings, momenta=fit.momenta, rates=fit.rates, follow_rate=follow_rate)
            if settings.schedule.scheme.exchange.uses_masks:
                settings = replace(settings, masks=find_masks(named, wrapped.module))
            hook = free_hook(wrapped)
        except Exception as error:
            refuse(group.comm, error)
            raise
        agree(group.comm, settings, named, {"auto": auto and str(auto), **masked(settings, named)})
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in named.items()}
        fourier = fourier_for(group.comm, [settings.schedule.scheme] if auto is None else auto.plans, names)
        say(recipe, group.comm.rank)
        if auto is None:
            return Link(names, group, settings, hook, fit, fourier, recipe)
        controller = open_controller(group, auto, settings, sum(parameter.numel() for parameter in names))
        return AutoLink(names, group, settings, hook, fit, fourier, controller, recipe)
    except BaseException:
        group.leave()
        raise
