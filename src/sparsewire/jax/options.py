"""The arguments of `exchange`, and what they come to for the parameters of a model: recipe and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparsewire.codecs.scheme import Spec
from sparsewire.errors import InputError
from sparsewire.planning.auto import read_auto
from sparsewire.training.named import SELECT, look_at, names_memory
from sparsewire.training.options import StepOptions
from sparsewire.training.recipe import Recipe
from sparsewire.training.schedule import Settings, is_whole
from sparsewire.training.settings import TensorLike, excluded

from .optimizers import Given, NotGiven, check_fit, read_optimizer

Tensors = Mapping[str, TensorLike]


@dataclass(frozen=True, kw_only=True)
class Options(StepOptions):
    """The arguments of `exchange`, which documents them."""

    scheme: Spec | None
    optimizer: Given
    every: int

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
        behind, sparse = read_optimizer(self.optimizer), not tensors or self.sparse(tensors, dense)
        recipe = self._recipe([behind.facts] if behind and sparse else [])
        settings = self.settings_by(recipe, tensors, dense)
        if settings.schedule.scheme.exchange.uses_masks:
            raise InputError("pruned models are for PyTorch: name a scheme without masks")
        if sparse:
            check_fit(behind, settings.schedule.scheme.memory)
        if behind is not None:
            momenta = dict.fromkeys(tensors, behind.momentum)
            settings = replace(settings, momenta=lambda: momenta)
        return recipe, settings

    def _recipe(self, facts: list[Any]) -> Recipe:
        try:
            return self.recipe_for(facts, self.scheme)
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
