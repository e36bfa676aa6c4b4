"""A cell's network trained by Keras on its torch backend: Keras' variables and optimizer, and `sparsewire.keras`."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from sparsewire.errors import InputError

from .elsewhere import OptimizerElsewhere, known_optimizer

NAMES = {"b1": "beta_1", "b2": "beta_2", "eps": "epsilon"}  # Keras' own, where they are not optax's


def trained_by_keras(
    module: nn.Module, optimizer: torch.optim.Optimizer, scheme: str, total_steps: int | None = None,
    memory: str | None = None, select_per: str | None = None, dense_below: int = 1024, warmup_steps: int = 0,
) -> tuple[nn.Module, Any]:  # fmt: skip
    """The module, and what steps in the place of its optimizer; that has the link."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    import sparsewire.keras

    if keras.backend.backend() != "torch":
        raise InputError("the networks of lab train are torch's: set KERAS_BACKEND=torch")
    model = keras.Model()
    model.inner = keras.layers.TorchModuleWrapper(module)
    model.built = True
    behind = _in_keras(keras.optimizers, optimizer)
    settings: dict[str, Any] = {"total_steps": total_steps, "memory": memory, "select_per": select_per}
    link = sparsewire.keras.attach(
        model, scheme, optimizer=behind, dense_below=dense_below, warmup_steps=warmup_steps, **settings
    )
    return module, KerasOptimizer(module, model.trainable_variables, behind, link)


def _in_keras(optimizers: Any, optimizer: torch.optim.Optimizer) -> Any:
    name, settings = known_optimizer(optimizer, "keras:")
    make = {"sgd": optimizers.SGD, "adamw": optimizers.AdamW}[name]
    return make(optimizer.param_groups[0]["lr"], **{NAMES.get(key, key): value for key, value in settings.items()})


class KerasOptimizer(OptimizerElsewhere):
    """Keras' optimizer, which the link has changed."""

    def __init__(self, module: nn.Module, variables: list[Any], optimizer: Any, link: Any) -> None:
        super().__init__(module, float(optimizer.learning_rate), link)
        self._variables, self._optimizer = variables, optimizer

    def move(self, rate: float) -> None:
        self._optimizer.learning_rate = rate
        self._optimizer.apply([one.value.grad for one in self._variables], self._variables)
