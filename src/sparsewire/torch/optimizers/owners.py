"""The optimizers that `optimizer=` names: one or several, looked at through wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sparsewire.errors import InputError
from sparsewire.training.recipe import OptimizerFacts

from .families import Group, Row, read_facts, row_of


class NotGiven:
    """What `optimizer=` is where nothing was written."""

    def __repr__(self) -> str:
        return "not given"


NOT_GIVEN = NotGiven()
Given = torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | NotGiven | None


@dataclass(frozen=True)
class Behind:
    """An optimizer that moves parameters: as the user sees it, and the one whose `step()` does it.

    ZeroRedundancyOptimizer has an optimizer inside, with this rank's share of the parameters.
    """

    outer: torch.optim.Optimizer
    inner: torch.optim.Optimizer

    @property
    def name(self) -> str:
        return type(self.inner).__name__

    @property
    def row(self) -> Row:
        return row_of(type(self.inner))

    @property
    def groups(self) -> list[Group]:
        """All parameters' groups, on every rank the same."""
        return self.outer.param_groups

    def facts(self, sparse: set[torch.Tensor]) -> list[OptimizerFacts]:
        """For the recipe; nothing where none of its parameters travels sparse."""
        groups = [group for group in self.groups if sparse.intersection(group["params"])]
        return read_facts(type(self.inner), groups) if groups else []


def read_optimizers(given: Given) -> list[Behind]:
    """The optimizers that `optimizer=` names: one, several, or none."""
    if given is None or isinstance(given, NotGiven):
        return []
    several = given if isinstance(given, (list, tuple)) else [given]
    return [_look_into(optimizer) for optimizer in several]


def _look_into(given: Any) -> Behind:
    optimizer = getattr(given, "optimizer", given)  # Accelerate and Lightning wrap it
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer is a torch.optim.Optimizer, a list of them, or None, not {given!r}")
    if type(optimizer).__name__ != "ZeroRedundancyOptimizer":
        return Behind(optimizer, optimizer)
    if getattr(optimizer, "_overlap_with_ddp", False):
        raise InputError(
            "ZeroRedundancyOptimizer steps within DDP's hook, which sparsewire needs: leave overlap_with_ddp out"
        )
    return Behind(optimizer, optimizer.optim)  # type: ignore[attr-defined]


def check_owned(optimizers: Sequence[Behind], parameters: Iterable[torch.Tensor]) -> None:
    """Refuses optimizers of another model."""
    held = set(parameters)
    for optimizer in optimizers:
        if not any(held.intersection(group["params"]) for group in optimizer.groups):
            raise InputError(
                f"{optimizer.name} has no parameter of this model: give attach the optimizer that trains it"
            )


def only_optimizers(optimizers: Iterable[Any], model: torch.nn.Module) -> list[Any]:
    """Those that have parameters of the model."""
    held = set(model.parameters())
    return [
        optimizer
        for optimizer in optimizers
        if any(held.intersection(group["params"]) for group in optimizer.param_groups)
    ]
