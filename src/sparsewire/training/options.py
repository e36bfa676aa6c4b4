"""`StepOptions`: the arguments that `attach` of every host takes alike, and what they come to for a model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec

from .recipe import OptimizerFacts, Recipe
from .schedule import Ratios, Settings, is_whole
from .settings import Exclude, LossScaler, TensorLike, read_settings, real_sizes


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Arguments of a training that exchanges gradients in every step. A host adds its own."""

    total_steps: int | None
    coverage: float
    ratio: float | None
    memory: str | Memory | None
    select_per: str | None
    dense_below: int
    exclude: Exclude
    warmup_steps: int
    ratio_schedule: Ratios | None
    clip_norm: float | None
    seed: int
    on_step: Callable[[dict[str, Any]], None] | None
    nodes: int | str | None

    def sparse(self, tensors: Mapping[str, TensorLike], dense: Collection[str]) -> set[str]:
        """The names of tensors that travel sparse, besides those that are named dense."""
        least = self.dense_below if is_whole(self.dense_below) else 0  # what is no number is refused later
        return {name for name, size in real_sizes(tensors).items() if name not in dense and size >= least}

    def recipe_for(self, optimizers: Sequence[OptimizerFacts], scheme: Spec | None) -> Recipe:
        """The recipe for these optimizers and this scheme."""
        return Recipe.of(
            optimizers, scheme, total_steps=self.total_steps, coverage=self.coverage, ratio=self.ratio,
            memory=self.memory, select_per=self.select_per, ratio_schedule=self.ratio_schedule,
        )  # fmt: skip

    def settings_by(
        self, recipe: Recipe, tensors: Mapping[str, TensorLike], dense: Collection[str], *,
        scheme: Spec | None = None, scaler: LossScaler | None = None, timeout: float | None = None,
    ) -> Settings:  # fmt: skip
        """The settings that a recipe comes to for these tensors; `scheme` stands for the recipe's."""
        return read_settings(
            tensors, recipe.scheme if scheme is None else scheme, recipe.select_per, self.dense_below,
            lambda name, _: name in dense, self.warmup_steps, recipe.ratio_schedule, scaler, self.seed, self.on_step,
            timeout, self.clip_norm, self.nodes,
        )  # fmt: skip
