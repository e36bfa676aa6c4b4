"""A DDP bucket on the host: what the courier works on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from ..kernels import Array
from ..sparse import Sparse, work_dtype
from .layout import Slice

IN_PLACE = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Bucket:
    """What outlives the hook's call: the buffer, whose gradients are in it, and whether it is the step's last."""

    buffer: torch.Tensor
    slices: tuple[Slice, ...]
    is_last: bool

    @classmethod
    def of(cls, bucket: dist.GradBucket, names: Mapping[torch.Tensor, str]) -> Bucket:
        slices, start = [], 0
        for parameter in bucket.parameters():
            slices.append(Slice(names[parameter], start, start + parameter.numel()))
            start += parameter.numel()
        return cls(bucket.buffer(), tuple(slices), bucket.is_last())

    @property
    def is_sparse(self) -> bool:
        return self.buffer.layout == torch.sparse_coo

    @property
    def dtype(self) -> str:
        return str(self.buffer.dtype).removeprefix("torch.")

    @property
    def dense_bytes(self) -> int:
        """What plain DDP would hand to its all-reduce."""
        return sum(item.size for item in self.slices) * self.buffer.element_size()


class Hosts:
    """Flat arrays in the work dtype for buckets: the buffer's own memory, or a copy that is kept for the next step."""

    def __init__(self) -> None:
        self._copies: dict[tuple[Slice, ...], Array] = {}

    def take(self, bucket: Bucket) -> Array:
        buffer = bucket.buffer.detach()
        if buffer.device.type == "cpu" and buffer.dtype in IN_PLACE:
            return buffer.numpy()
        if bucket.slices not in self._copies:
            # Rebuilt buckets leave no copy behind that will not be used again.
            names = {item.name for item in bucket.slices}
            self._copies = {k: v for k, v in self._copies.items() if not names & {item.name for item in k}}
            self._copies[bucket.slices] = np.empty(buffer.numel(), work_dtype(bucket.dtype))
        copy = self._copies[bucket.slices]
        torch.from_numpy(copy).copy_(buffer)
        return copy

    def put(self, bucket: Bucket, flat: Array) -> None:
        if bucket.buffer.data_ptr() != flat.ctypes.data:
            bucket.buffer.detach().copy_(torch.from_numpy(flat))


def to_coo(mean: Sparse, like: torch.Tensor) -> torch.Tensor:
    """A `Sparse` as a COO tensor with whole rows, as an embedding's gradient has them."""
    width = math.prod(like.shape[like.sparse_dim() :])
    rows, place = np.unique(mean.indices.astype(np.int64) // width, return_inverse=True)
    values = np.zeros((rows.size, width), mean.work_values.dtype)
    values[place, mean.indices.astype(np.int64) % width] = mean.work_values
    index = np.stack(np.unravel_index(rows, tuple(like.shape[: like.sparse_dim()])))
    filled = torch.from_numpy(values).view(-1, *like.shape[like.sparse_dim() :]).to(like.dtype)
    made = torch.sparse_coo_tensor(
        torch.from_numpy(index), filled, like.shape, is_coalesced=True, check_invariants=False
    )
    return made.to(like.device)
