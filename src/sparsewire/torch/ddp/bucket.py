"""A DDP bucket, as the communication thread works on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from sparsewire.core.sparse import Sparse, work_dtype
from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.kernels.device.array import DeviceArray
from sparsewire.kernels.scratch import BufferPool
from sparsewire.training.layout import Buffer, Slice

IN_PLACE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Bucket:
    """A bucket's buffer, the parameters whose gradients are in it, and whether it is the last one of its step.

    Unlike DDP's own object it outlives the hook's call.
    """

    buffer: torch.Tensor
    numbers: torch.Tensor  # the same memory, complex numbers as pairs
    slices: tuple[Slice, ...]
    is_last: bool

    @classmethod
    def of(cls, bucket: dist.GradBucket, names: Mapping[torch.Tensor, str]) -> Bucket:
        slices, start = [], 0
        for parameter in bucket.parameters():
            size = parameter.numel() * (1 + parameter.is_complex())
            slices.append(Slice(names[parameter], start, start + size))
            start += size
        buffer = bucket.buffer()
        numbers = torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer
        if buffer.layout == torch.strided and numbers.numel() != start:
            raise InputError(f"DDP's bucket has {numbers.numel()} numbers, its parameters have {start}: {slices}")
        return cls(buffer, numbers, tuple(slices), bucket.is_last())

    @property
    def is_sparse(self) -> bool:
        return self.buffer.layout == torch.sparse_coo

    @property
    def label(self) -> str:
        """For people."""
        if not self.slices:
            return "bucket without parameters"
        first, last = self.slices[0].name, self.slices[-1].name
        return f"bucket {first}" if first == last else f"bucket {first} … {last}"

    @property
    def dtype(self) -> str:
        return str(self.numbers.dtype).removeprefix("torch.")

    def as_buffer(self, staging: BufferPool, on_device: bool = False) -> Buffer:
        """The bucket for the averager: where it lies, or as an array of the host, which is the bucket's own memory if
        it is in the work dtype and on the CPU."""
        tensor = self.numbers.detach()
        if on_device:
            numbers: Any = DeviceArray(tensor)
            return Buffer(self.slices, self.dtype, lambda: numbers)
        if tensor.device.type == "cpu" and tensor.dtype in IN_PLACE:
            flat = tensor.numpy()
            return Buffer(self.slices, self.dtype, lambda: flat)

        def read() -> Array:
            copy = staging(tensor.numel(), work_dtype(self.dtype))
            torch.from_numpy(copy).copy_(tensor)
            return copy

        return Buffer(self.slices, self.dtype, read, lambda mean: _copy(tensor, mean), copies=True)


def _copy(tensor: torch.Tensor, mean: Array) -> None:
    tensor.copy_(torch.from_numpy(mean))


def to_coo(mean: Sparse, like: torch.Tensor) -> torch.Tensor:
    """A `Sparse` of whole rows as a COO tensor, as an embedding's gradient is one."""
    sizes = tuple(like.shape[: like.sparse_dim()])
    index = np.stack(np.unravel_index(mean.indices.astype(np.int64), sizes))
    rows = torch.from_numpy(mean.work_values).view(-1, *like.shape[like.sparse_dim() :]).to(like.dtype)
    made = torch.sparse_coo_tensor(torch.from_numpy(index), rows, like.shape, is_coalesced=True, check_invariants=False)
    return made.to(like.device)
