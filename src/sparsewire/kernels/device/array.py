"""`DeviceArray`: a flat tensor with the few verbs of a NumPy array that a training uses, so that it is written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..reference import Array
from . import crossing, torch_spectra
from .torch_base import blocks, magnitude_bits, work_dtype

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

    def empty_beside(self, size: int) -> DeviceArray:
        """So many numbers of any value in the work dtype, in the same memory."""
        return DeviceArray(torch.empty(size, dtype=work_dtype(self.tensor), device=self.tensor.device))

    def padded(self, more: int) -> DeviceArray:
        """The same with so many zeros behind it, in the work dtype."""
        if not more and not self.is_narrow:
            return self
        out = self.zeros_beside(self.size + more)
        out.tensor[: self.size] = self.tensor
        return out

    # --- entries of several numbers, and transforms ---

    def entries(self, indices: Tensor, width: int) -> Tensor:
        """The numbers of entries, one entry after the other, still on the device."""
        return self.tensor.view(-1, width)[indices.long()].view(-1)

    def put_entries(self, indices: Array, values: Array, width: int) -> None:
        self.tensor.view(-1, width)[self._up(indices).long()] = self._up(values).view(-1, width)

    def row_norms(self, width: int) -> DeviceArray:
        return DeviceArray(torch_spectra.row_norms(self.tensor, width))

    def transform(self, kind: str, x: DeviceArray, chunks: int) -> None:
        """Takes the coefficients of flat chunks."""
        torch_spectra.transform(kind, x.tensor, self.tensor, chunks)

    def transform_back(self, kind: str, coefficients: DeviceArray, chunks: int) -> None:
        """Takes the flat chunks that have these coefficients."""
        torch_spectra.inverse(kind, coefficients.tensor, self.tensor, chunks)

    def tiles(self, columns: int, rows: slice, across: slice, height: int, width: int) -> DeviceArray:
        """A part of a flat matrix of so many columns, tile after tile."""
        return DeviceArray(torch_spectra.tiles(self.tensor.view(-1, columns)[rows, across], height, width))

    def put_tiles(
        self, columns: int, rows: slice, across: slice, height: int, width: int, tiles: DeviceArray
    ) -> None:  # fmt: skip
        torch_spectra.put_tiles(self.tensor.view(-1, columns)[rows, across], tiles.tensor, height, width)

    def turned(self, height: int, width: int) -> DeviceArray:
        """Every tile transposed."""
        return DeviceArray(torch_spectra.turned(self.tensor, height, width))

    # --- several at once ---

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

    # --- one at a time ---

    def sampled_edge(self, where: Array | None, rank: int, least: int, most: int) -> Tensor:
        """The magnitude's bits of that rank among some numbers, the smallest first; within bounds."""
        sample = self.tensor if where is None else self.tensor[self._up(where)]
        bits = magnitude_bits(sample.to(work_dtype(sample)))
        return torch.kthvalue(bits, rank + 1).values.clamp_(least, most)

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

    def change_if_used(self, change: Callable[[DeviceArray], None]) -> None:
        """Makes a change, and undoes it where all was zero before."""
        used, before = self.tensor.any(), self.tensor.clone()
        change(self)
        self.tensor.copy_(torch.where(used, self.tensor, before))

    def add_nonzero(self, values: DeviceArray, factor: float) -> None:
        """self += factor · values, as if zeros among the values were left out: −0 stays −0 there."""
        for at in blocks(self.size):
            added, mine = values.tensor[at], self.tensor[at]
            mine.copy_(torch.where(added != 0, mine + added * factor, mine))

    def __itruediv__(self, divisor: float) -> DeviceArray:
        # By a number of the host a GPU would multiply with the rounded 1 / divisor.
        self.tensor.div_(torch.full((), float(divisor), dtype=self.tensor.dtype, device=self.tensor.device))
        return self

    def _up(self, value: Any) -> Tensor:
        return value.tensor if isinstance(value, DeviceArray) else crossing.up(value, self.tensor.device)
