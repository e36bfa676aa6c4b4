"""The arguments of `exchange`, and what they come to for the parameters of a model: recipe and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Spec
from sparsewire.errors import InputError
from sparsewire.planning.auto import read_auto
from sparsewire.training.named import SELECT, look_at, names_memory
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Ratios, Settings, is_whole
from sparsewire.training.settings import Exclude, TensorLike, excluded, read_settings, real_sizes

from .optimizers import Given, NotGiven, check_fit, read_optimizer

Tensors = Mapping[str, TensorLike]


@dataclass(frozen=True)
class Options:
    """The arguments of `exchange`, which documents them."""

    scheme: Spec | None
    optimizer: Given
    total_steps: int | None
    coverage: float
    ratio: float | None
    memory: str | Memory | None
    every: int
    select_per: str | None
    dense_below: int
    exclude: Exclude
    warmup_steps: int
    ratio_schedule: Ratios | None
    clip_norm: float | None
    seed: int
    on_step: Callable[[dict[str, Any]], None] | None
    nodes: int | str | None

    def check(self) -> None:
        """Refuses what is wrong whatever the parameters are."""
        if not is_whole(self.every) or self.every < 1:
            raise InputError(f"every is a number of micro-steps, 1 or more, not {self.every!r}")
        if read_auto(self.scheme) is not None:
            raise InputError("sparsewire.jax has no auto: name a scheme, or leave it out for the recipe")
        named = self.memory is not None or (self.scheme is not None and names_memory(self.scheme))
        if isinstance(self.optimizer, NotGiven) and not named:
            look_at(self.scheme or SELECT)  # a scheme that cannot be read is refused for that
            raise InputError(
                "which memory keeps what is not sent goes by the optimizer: write "
                'exchange(optimizer="sgd(momentum=0.9)", total_steps=…), or name the memory in the scheme, '
                '"topk(5%) | memory=residual", or write optimizer=None'
            )
        self.settings_for({})

    def settings_for(self, tensors: Tensors) -> tuple[Recipe, Settings]:
        """The recipe and the settings for these parameters; without any, for parameters that travel sparse."""
        dense = excluded(tensors, self.exclude) if tensors else frozenset[str]()
        least = self.dense_below if is_whole(self.dense_below) else 0
        sparse = [name for name, size in real_sizes(tensors).items() if name not in dense and size >= least]
        behind = read_optimizer(self.optimizer)
        recipe = self._recipe([behind.facts] if behind and (sparse or not tensors) else [])
        settings = read_settings(
            tensors, recipe.scheme, recipe.select_per, self.dense_below, lambda name, _: name in dense,
            self.warmup_steps, recipe.ratio_schedule, None, self.seed, self.on_step, None, self.clip_norm, self.nodes,
        )  # fmt: skip
        if settings.schedule.scheme.exchange.uses_masks:
            raise InputError("pruned models are for PyTorch: name a scheme without masks")
        if sparse or not tensors:
            check_fit(behind, settings.schedule.scheme.memory)
        if behind is not None:
            momenta = dict.fromkeys(tensors, behind.momentum)
            settings = replace(settings, momenta=lambda: momenta)
        return recipe, settings

    def _recipe(self, facts: list[Any]) -> Recipe:
        try:
            return Recipe.of(
                facts, self.scheme, total_steps=self.total_steps, coverage=self.coverage, ratio=self.ratio,
                memory=self.memory, select_per=self.select_per, ratio_schedule=self.ratio_schedule,
            )  # fmt: skip
        except InputError as error:
            raise InputError(self.in_words_of_exchange(str(error))) from None

    def in_words_of_exchange(self, text: str) -> str:
        """What the recipe says of attach, said of exchange."""
        behind = f'optimizer="{self.optimizer}"' if isinstance(self.optimizer, str) else "optimizer=None"
        return text.replace("attach(model, ", "exchange(").replace("optimizer=optimizer", behind)

    @property
    def agreed(self) -> dict[str, Any]:
        """What every rank must have alike, besides the settings."""
        return {"optimizer behind": str(self.optimizer), "every": int(self.every)}
