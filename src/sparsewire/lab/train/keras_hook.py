"""A cell's network trained by Keras on its torch backend: Keras' variables and optimizer, and `sparsewire.keras`."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from sparsewire.errors import InputError


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
    group = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD) and not group["weight_decay"]:
        return optimizers.SGD(group["lr"], momentum=float(group["momentum"]), nesterov=group["nesterov"])
    if isinstance(optimizer, torch.optim.AdamW):
        beta_1, beta_2 = group["betas"]
        return optimizers.AdamW(
            group["lr"], weight_decay=group["weight_decay"], beta_1=beta_1, beta_2=beta_2, epsilon=group["eps"]
        )
    raise InputError(f"keras: is for workloads with SGD or AdamW, not {type(optimizer).__name__}")


class KerasOptimizer:
    """What an `Arm` calls of torch's optimizers."""

    def __init__(self, module: nn.Module, variables: list[Any], optimizer: Any, link: Any) -> None:
        self.link, self._module, self._variables, self._optimizer = link, module, variables, optimizer
        self.param_groups: list[dict[str, Any]] = [{"lr": float(optimizer.learning_rate)}]

    def zero_grad(self) -> None:
        self._module.zero_grad()

    def step(self) -> None:
        self._optimizer.learning_rate = self.param_groups[0]["lr"]
        gradients = [one.value.grad for one in self._variables]
        with torch.no_grad():
            self._optimizer.apply(gradients, self._variables)
