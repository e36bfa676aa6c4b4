"""`ClipWatch`: notices that gradients are changed in place between backward and the optimizer's step.

`clip_grad_norm_` after backward clips what has waited together with the gradient, and leaves no trace but the version
number that torch counts up with every change in place. GradScaler.unscale_ does not count it up.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

import torch

from sparsewire.training.schedule import Settings

from ..tensors import local

TEXT = (
    "gradients were changed between backward and optimizer.step(), as clip_grad_norm_ does: that clips what has waited "
    "to be sent together with the gradient, and costs accuracy; write attach(…, clip_norm=…) instead"
)


class ClipWatch:
    """The gradient of one parameter that travels sparse, as backward has left it."""

    def __init__(self, names: Mapping[torch.Tensor, str], settings: Settings) -> None:
        sparse = (parameter for parameter, name in names.items() if settings.is_sparse(name, parameter.numel()))
        self._parameter = next(sparse, None)
        self._left: tuple[int, float] | None = None
        self._scaled = settings.scale is not None

    def begin(self) -> None:
        """Called in a hook of DDP's last bucket: the gradient is noted once DDP, which comes first, has written it."""
        if self._parameter is None:
            return
        engine: Any = torch.autograd.Variable._execution_engine
        with contextlib.suppress(RuntimeError):  # no backward: a rank that has joined goes along with the others
            engine.queue_callback(lambda: engine.queue_callback(self.note))

    def stop(self) -> None:
        """Nothing is noticed from now on."""
        self._parameter = self._left = None

    def note(self) -> None:
        """The gradient is now as the optimizer should find it."""
        self._left = self._now()

    def _now(self) -> tuple[int, float] | None:
        """Where the gradient is, and a number that changes with it: its version, or the sum of a shard, whose changes
        torch does not count up; but a GradScaler changes the sum as well."""
        gradient = None if self._parameter is None else self._parameter.grad
        if gradient is None or gradient.layout != torch.strided or gradient.is_inference():
            return None
        shard = local(gradient)
        if shard is gradient:
            return gradient.data_ptr(), gradient._version
        total = 0.0 if self._scaled else float(shard.sum())
        return (shard.data_ptr(), total) if math.isfinite(total) else None

    def changed(self) -> str:
        """What is wrong where the same gradient has been changed since; asked once after each backward."""
        left, self._left = self._left, None
        now = self._now()
        return TEXT if left and now and left[0] == now[0] and left[1] != now[1] else ""
