"""A cell's network whose weights another framework's optimizer moves: what the hooks of these frameworks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from sparsewire.errors import InputError


def known_optimizer(optimizer: torch.optim.Optimizer, start: str) -> tuple[str, dict[str, Any]]:
    """ "sgd" or "adamw", and its settings as optax calls them. `start` begins the method."""
    group = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.SGD) and not group["weight_decay"]:
        return "sgd", {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
    if isinstance(optimizer, torch.optim.AdamW):
        b1, b2 = group["betas"]
        return "adamw", {"b1": b1, "b2": b2, "eps": group["eps"], "weight_decay": group["weight_decay"]}
    name = type(optimizer).__name__
    raise InputError(f"{start} is for workloads with SGD (without weight decay) or AdamW, not {name}")


class OptimizerElsewhere(ABC):
    """What an `Arm` calls of torch's optimizers, and the link."""

    def __init__(self, module: nn.Module, rate: float, link: Any) -> None:
        self.link = link
        self.param_groups: list[dict[str, Any]] = [{"lr": rate}]
        self._module = module

    def zero_grad(self) -> None:
        self._module.zero_grad()

    def step(self) -> None:
        with torch.no_grad():
            self.move(self.param_groups[0]["lr"])

    @abstractmethod
    def move(self, rate: float) -> None:
        """Exchanges the gradients and moves the weights."""
