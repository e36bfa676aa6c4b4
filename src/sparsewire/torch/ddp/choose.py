"""What `attach` is not told, chosen: the recipe for a model's optimizers, and for the candidates of `auto`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sparsewire.codecs.scheme import Spec
from sparsewire.errors import InputError
from sparsewire.planning.auto import Auto, read_auto
from sparsewire.training.named import SELECT, complete, look_at, names_memory, names_ratio
from sparsewire.training.recipe import Recipe

from ..optimizers import NOT_GIVEN, Behind, check_owned

if TYPE_CHECKING:
    from .opening import Options

logger = logging.getLogger("sparsewire")


def choose(
    options: Options, behind: Sequence[Behind], named: Mapping[str, torch.nn.Parameter], dense: Collection[str]
) -> Recipe:
    """The recipe for what is fixed and for the optimizers of parameters that travel sparse."""
    spec = options.scheme.candidates[0] if isinstance(options.scheme, Auto) else options.scheme
    check_owned(behind, named.values())
    if options.optimizer is NOT_GIVEN and options.memory is None and (spec is None or not names_memory(spec)):
        look_at(spec or SELECT)  # a scheme that cannot be read is refused for that
        raise InputError(
            "which memory keeps what is not sent goes by the optimizer: write attach(model, optimizer=optimizer, "
            'total_steps=…), or name the memory in the scheme, "topk(5%) | memory=residual", or write optimizer=None'
        )
    sparse: set[torch.Tensor] = {named[name] for name in options.sparse(named, dense)}
    facts = [fact for optimizer in behind for fact in optimizer.facts(sparse)]
    return options.recipe_for(list(dict.fromkeys(facts)), spec)


def auto_of(scheme: Spec | Auto | None, recipe: Recipe) -> Auto | None:
    """The candidates of auto, each with what the recipe chose; None for other schemes."""
    if not isinstance(scheme, Auto):
        return read_auto(recipe.scheme)
    memory = look_at(recipe.scheme).memory
    return replace(scheme, candidates=[
        complete(spec, None if names_memory(spec) else memory, None if names_ratio(spec) else recipe.ratio)
        for spec in scheme.candidates
    ])  # fmt: skip


def say(recipe: Recipe, rank: int) -> None:
    """One line in the log of rank 0."""
    if rank == 0:
        logger.info("%s", recipe.text())
