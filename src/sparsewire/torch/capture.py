"""`capture` records a model's gradients of some steps, before ranks exchange them, for `sparsewire advise`."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import torch

from sparsewire.core.files import PathLike, write_file
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from .checks import named_parameters


class Capture:
    """Gradients by name and step, `layer.weight@0`; records while it is open as a context.

    A step is one backward. Where gradients accumulate over several, what has accumulated so far is recorded.
    """

    def __init__(self, model: torch.nn.Module, steps: int, skip: int) -> None:
        self.arrays: dict[str, Array] = {}
        self._backwards: Counter[str] = Counter()
        self._steps = range(skip, skip + steps)
        named = {name: parameter for name, parameter in named_parameters(model).items() if parameter.requires_grad}
        if not any(parameter.numel() > 1 for parameter in named.values()):
            raise InputError(f"{type(model).__name__} has no parameter of two or more elements that wants a gradient")
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._record, name))  # type: ignore[no-untyped-call]
            for name, parameter in named.items()
            if parameter.numel() > 1
        ]

    @property
    def seen(self) -> int:
        """Backwards so far; a parameter that a step does not use lags behind."""
        return max(self._backwards.values(), default=0)

    @property
    def done(self) -> bool:
        """Whether all steps have been recorded."""
        return self.seen >= self._steps.stop

    def save(self, path: PathLike) -> None:
        """Writes a .npz for `sparsewire advise`."""
        if not self.arrays:
            raise InputError("no gradient has been captured: call backward inside `with capture(model) as taken:`")
        write_file(path, lambda file: np.savez(file, **self.arrays))  # type: ignore[arg-type]

    def close(self) -> None:
        """Records no more; the model is as it was."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _record(self, name: str, parameter: torch.Tensor) -> None:
        step = self._backwards[name]
        self._backwards[name] += 1
        if step in self._steps and parameter.grad is not None:
            self.arrays[f"{name}@{step}"] = _array(parameter.grad.detach())


def capture(model: torch.nn.Module, steps: int = 1, *, skip: int = 0) -> Capture:
    """Records the gradients of `steps` backwards of a model, after `skip` that are left out.

    In DDP these are this rank's own, before the exchange. Parameters of one element are left out.

    >>> model = torch.nn.Linear(3, 2)
    >>> with capture(model, steps=2) as taken:
    ...     for _ in range(2):
    ...         model(torch.ones(1, 3)).sum().backward()
    >>> sorted(taken.arrays)
    ['bias@0', 'bias@1', 'weight@0', 'weight@1']
    """
    if steps < 1 or skip < 0:
        raise InputError(f"capture needs steps ≥ 1 and skip ≥ 0, not steps={steps}, skip={skip}")
    return Capture(model, steps, skip)


def _array(gradient: torch.Tensor) -> Array:
    """A copy on the host: dense, real, float32 unless it is float64."""
    dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    kind = torch.float64 if real.dtype == torch.float64 else torch.float32
    copy: Array = real.to("cpu", kind, copy=True).contiguous().numpy()
    return copy
