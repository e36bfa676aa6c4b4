"""What `attach` is not told, chosen: the recipe for a model's optimizers, and for the candidates of `auto`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from sparsewire.codecs.scheme import Spec
from sparsewire.errors import InputError
from sparsewire.planning.auto import Auto, read_auto
from sparsewire.training.named import SELECT, complete, look_at, names_memory, names_ratio
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import is_whole

from ..optimizers import NOT_GIVEN, Behind, Given, check_owned

logger = logging.getLogger("sparsewire")


def choose(
    scheme: Spec | Auto | None, optimizer: Given, behind: Sequence[Behind], sparse: set[torch.Tensor], **fixed: Any
) -> Recipe:
    """The recipe for what is fixed and for the optimizers of parameters that travel sparse."""
    spec = scheme.candidates[0] if isinstance(scheme, Auto) else scheme
    named = fixed["memory"] is not None or (spec is not None and names_memory(spec))
    if optimizer is NOT_GIVEN and not named:
        look_at(spec or SELECT)  # a scheme that cannot be read is refused for that
        raise InputError(
            "which memory keeps what is not sent goes by the optimizer: write attach(model, optimizer=optimizer, "
            'total_steps=…), or name the memory in the scheme, "topk(5%) | memory=residual", or write optimizer=None'
        )
    facts = [fact for one in behind for fact in one.facts(sparse)]
    return Recipe.of(list(dict.fromkeys(facts)), spec, **fixed)


def auto_of(scheme: Spec | Auto | None, recipe: Recipe) -> Auto | None:
    """The candidates of auto, each with what the recipe chose; None for other schemes."""
    if not isinstance(scheme, Auto):
        return read_auto(recipe.scheme)
    memory = look_at(recipe.scheme).memory
    return replace(scheme, candidates=[
        complete(one, None if names_memory(one) else memory, None if names_ratio(one) else recipe.ratio)
        for one in scheme.candidates
    ])  # fmt: skip


def sparse_ones(
    behind: Sequence[Behind], named: Mapping[str, torch.nn.Parameter], dense: Collection[str], dense_below: int
) -> set[torch.Tensor]:
    """The parameters that travel sparse, as long as their gradients are dense."""
    check_owned(behind, named.values())
    least = dense_below if is_whole(dense_below) else 0  # what is no number is refused later
    return {
        parameter
        for name, parameter in named.items()
        if name not in dense and parameter.numel() * (1 + parameter.is_complex()) >= least
    }


def say(recipe: Recipe, rank: int) -> None:
    """One line in the log of rank 0."""
    if rank == 0:
        logger.info("%s", recipe.text())
