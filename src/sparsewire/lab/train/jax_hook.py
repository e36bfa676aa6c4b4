"""A cell's network whose gradients go as JAX arrays through `sparsewire.jax.exchange` and an optimizer of optax."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from sparsewire.comm import TorchCommunicator

from .elsewhere import OptimizerElsewhere, known_optimizer


def trained_by_optax(
    module: nn.Module, optimizer: torch.optim.Optimizer, scheme: str, total_steps: int | None = None,
    memory: str | None = None, select_per: str | None = None, dense_below: int = 1024, warmup_steps: int = 0,
) -> tuple[nn.Module, Any]:  # fmt: skip
    """The module, and what steps in the place of its optimizer; that has the link."""
    name, given = known_optimizer(optimizer, "jax:")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # where the networks of lab train are
    from sparsewire.jax import exchange

    wire = exchange(
        scheme, optimizer=_behind(name, given), total_steps=total_steps, memory=memory, select_per=select_per,
        dense_below=dense_below, warmup_steps=warmup_steps, comm=TorchCommunicator(),
    )  # fmt: skip
    return module, OptaxOptimizer(module, optimizer.param_groups[0]["lr"], wire, name, given)


def _behind(name: str, given: Mapping[str, Any]) -> str:
    """The optimizer as `exchange` is told of it."""
    if name == "adamw":
        return "adamw(b1=0)"
    return f"sgd(momentum={given['momentum']}, nesterov={str(given['nesterov']).lower()})"


class OptaxOptimizer(OptimizerElsewhere):
    """The exchange and optax's optimizer behind it, whose rate is 1: its steps are proportional to the rate."""

    def __init__(self, module: nn.Module, rate: float, wire: Any, name: str, given: Mapping[str, Any]) -> None:
        import jax
        import optax

        super().__init__(module, rate, wire.link)
        self._trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
        weights = self._weights()
        behind = _in_optax(name, given, _waiting(wire.link, weights))
        self._transformation = optax.chain(wire, optax.GradientTransformation(behind.init, jax.jit(behind.update)))
        self._state = self._transformation.init(weights)

    def move(self, rate: float) -> None:
        updates, self._state = self._transformation.update(self._gradients(), self._state, self._weights())
        for name, one in self._trained.items():
            one.add_(torch.from_numpy(np.array(updates[name])), alpha=rate)

    def _gradients(self) -> dict[str, Any]:
        """In the memory of torch's where JAX can: nobody writes to them, as `zero_grad` drops them."""
        import jax.numpy as jnp

        found = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in self._trained.items()}
        return {name: jnp.asarray(one.numpy()) for name, one in found.items()}

    def _weights(self) -> dict[str, Any]:
        """Copies: the weights move in their own memory."""
        import jax.numpy as jnp

        return {name: jnp.array(one.detach().numpy(), copy=True) for name, one in self._trained.items()}


def _waiting(link: Any, weights: Mapping[str, Any]) -> set[str]:
    """The parameters that travel sparse, and of which a part waits to be sent."""
    _, settings = link.options.settings_for(weights)
    waits = bool(settings.schedule.scheme.memory.buffers)
    return {name for name, one in weights.items() if waits and settings.is_sparse(name, one.size)}


def _in_optax(name: str, given: Mapping[str, Any], waiting: set[str]) -> Any:
    """AdamW has no first moment for parameters of which a part waits, as with `attach`."""
    import optax

    if name == "sgd":
        return optax.sgd(1.0, momentum=given["momentum"] or None, nesterov=given["nesterov"])
    parts = {True: optax.adamw(1.0, **{**given, "b1": 0.0}), False: optax.adamw(1.0, **given)}
    return optax.partition(parts, lambda tree: {name: name in waiting for name in tree})
