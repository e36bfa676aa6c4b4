"""`DeviceArray`: a flat tensor with the few verbs of a NumPy array that a training uses, so that it is written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..reference import Array
from . import crossing
from .torch_base import blocks, work_dtype

SAMPLE = 1024
DTYPES = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class DeviceArray:
    """A flat tensor of float32, float64, bfloat16 or float16. `dtype` is the work dtype, as arrays of the host have it.

    Slices are views. Taking entries at an array of indices gives an array of the host.
    """

    on_device = True
    ndim = 1

    def __init__(self, tensor: Tensor, base: DeviceArray | None = None) -> None:
        self.tensor, self.base = tensor, base
        self.edge: Tensor | None = None  # of a residual: what its selection remembers from step to step

    @property
    def size(self) -> int:
        return self.tensor.numel()

    @property
    def dtype(self) -> Any:
        return DTYPES[work_dtype(self.tensor)]

    @property
    def is_narrow(self) -> bool:
        """Whether it is stored in less than the work dtype."""
        return self.tensor.dtype not in DTYPES

    def copy(self) -> DeviceArray:
        return DeviceArray(self.tensor.clone())

    def widened(self) -> DeviceArray:
        """A copy in the work dtype."""
        return DeviceArray(self.tensor.to(work_dtype(self.tensor), copy=True))

    def empty(self) -> DeviceArray:
        """As large, in the work dtype, with any numbers."""
        return DeviceArray(torch.empty_like(self.tensor, dtype=work_dtype(self.tensor)))

    def zeros_beside(self, size: int) -> DeviceArray:
        """So many zeros in the work dtype, in the same memory."""
        return DeviceArray(torch.zeros(size, dtype=work_dtype(self.tensor), device=self.tensor.device))

    @staticmethod
    def used_flags(arrays: Sequence[DeviceArray], sampled: bool) -> crossing.Later:
        """For each array whether anything of it is not zero, or, `sampled`, any of about a thousand of its numbers."""
        tensors = [array.tensor[:: max(1, array.size // SAMPLE) if sampled else 1] for array in arrays]
        return crossing.later(torch.stack([tensor.any() for tensor in tensors]))

    @staticmethod
    def joined(arrays: Sequence[DeviceArray]) -> DeviceArray:
        """Arrays side by side."""
        return DeviceArray(torch.cat([array.tensor for array in arrays]))

    @staticmethod
    def together(arrays: Sequence[DeviceArray]) -> crossing.Later:
        """Arrays side by side, on their way to the host."""
        return crossing.later(torch.cat([array.tensor for array in arrays]))

    def host(self) -> Array:
        """All of it on the host, in the work dtype."""
        return crossing.down(self.tensor)[0]

    def overlaps(self, other: DeviceArray) -> bool:
        """Whether two arrays begin at the same place."""
        return self.tensor.data_ptr() == other.tensor.data_ptr()

    def __getitem__(self, at: slice | Array) -> Any:
        if isinstance(at, slice):
            return DeviceArray(self.tensor[at], self if self.base is None else self.base)
        return crossing.down(self.tensor[self._up(at).long()])[0]

    def __setitem__(self, at: slice | Array, value: Any) -> None:
        if isinstance(at, slice):
            part = self.tensor[at]
            part.fill_(value) if isinstance(value, int | float) else part.copy_(self._up(value))
        else:
            self.tensor[self._up(at).long()] = self._up(value).to(self.tensor.dtype)

    def __iadd__(self, other: Any) -> DeviceArray:
        self.tensor.add_(self._up(other))
        return self

    def __isub__(self, other: Any) -> DeviceArray:
        self.tensor.sub_(self._up(other))
        return self

    def __imul__(self, factor: float) -> DeviceArray:
        self.tensor.mul_(float(factor))
        return self

    def multiply_wide(self, factor: float) -> None:
        """Multiplies in place in float64, which holds factors that float32 may not."""
        for at in blocks(self.size):
            self.tensor[at] = self.tensor[at].double().mul_(factor).to(self.tensor.dtype)

    def __itruediv__(self, divisor: float) -> DeviceArray:
        # By a number of the host a GPU would multiply with the rounded 1 / divisor.
        self.tensor.div_(torch.full((), float(divisor), dtype=self.tensor.dtype, device=self.tensor.device))
        return self

    def _up(self, value: Any) -> Tensor:
        return value.tensor if isinstance(value, DeviceArray) else crossing.up(value, self.tensor.device)
