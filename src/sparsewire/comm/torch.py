"""Ranks of a torch.distributed process group."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..errors import CommError, CommTimeout
from .base import (
    Array,
    Bytes,
    BytesLike,
    Communicator,
    Halves,
    as_bytes,
    check_parts,
    check_peer,
    check_reducible,
    check_root,
)
from .groups import devices_of, drop, new_group
from .slots import HEADER, SMALL, SlotGather, SlotSwap, length_of, pack, unpack

OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "bor": dist.ReduceOp.BOR}
CPU = torch.device("cpu")
# Torch 2.13 renamed it and warns about the old name, which is the only one that earlier versions know.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class TorchCommunicator(Communicator):
    """A process group of any backend; waits as long as the group's own timeout.

    Everything travels as plain uint8 or as the reduced dtype: gloo knows no float8 and no unsigned 16 or 32.
    `device` is where the engine wants its buffers: by default the CPU if it can, else the accelerator in use.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, device: torch.device | str | None = None) -> None:
        if not dist.is_initialized():
            raise CommError("torch.distributed has no process group: call init_process_group first")
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise CommError("this process is not a member of the group")
        self._device = torch.device(device) if device is not None else _default_device(group)
        self._slots = SlotGather(self.size, self._gather_equal)
        self._pairs = SlotSwap(self.rank, self.size, self._swap)
        self._closed = False
        self._abandoned: list[Any] = []
        self._own = False  # whether the group ends with this communicator

    @property
    def device(self) -> torch.device:
        """Where the engine wants its buffers."""
        return self._device

    def all_gather(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        return self._count(self._slots(data, channel))

    def all_to_all(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        check_parts(self, parts)
        return self._count(self._pairs(parts, channel))

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        check_reducible(array, op)
        if op == "bor" and self._device != CPU:  # NCCL and its like know no bitwise operations
            return self._or(np.ascontiguousarray(array))
        return self._reduce(np.array(array, order="C"), op)

    def _or(self, array: Array) -> Array:
        everyone = np.empty((self.size, array.nbytes), np.uint8)
        if array.size:
            self._gather_equal(array.reshape(-1).view(np.uint8), everyone.reshape(-1))
            self.bytes_received += everyone.nbytes
        found: Array = np.bitwise_or.reduce(everyone.view(array.dtype)).reshape(array.shape)
        return found

    def sum_bfloat16(self, bits: Halves) -> Halves:
        """Gloo and NCCL know bfloat16; NumPy hands its bits over as int16."""
        return self._reduce(bits.view(np.int16).copy(), "sum", torch.bfloat16).view(np.uint16)

    def start_all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> dist.Work:
        """Begins to combine a tensor over the ranks in its own memory; it lies where the engine wants its buffers.

        No other collective may begin elsewhere before it has ended: ranks would take them in different orders.
        """
        nbytes = tensor.numel() * tensor.element_size()
        self.bytes_received += nbytes
        numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        begun: dist.Work = self._collective("all_reduce", nbytes, _start_all_reduce, numbers, OPS[op])
        return begun

    def _reduce(self, total: Array, op: str, dtype: torch.dtype | None = None) -> Array:
        """In the array's own memory; `dtype` is what its bits stand for, if NumPy has no name for that."""
        if total.size:
            tensor = self._stage(total)
            self.bytes_received += total.nbytes
            numbers = tensor if dtype is None else tensor.view(dtype)
            self._collective("all_reduce", total.nbytes, dist.all_reduce, numbers, OPS[op])
            self._unstage(tensor, total)
        return total

    def broadcast(self, data: BytesLike | None, root: int = 0) -> bytes:
        check_root(self, root)
        mine = as_bytes(data if self.rank == root and data is not None else b"")
        slot, rest = pack(mine, SMALL)
        self._broadcast(slot, root)
        rest = _rest_for(slot) if self.rank != root else rest.copy()
        if rest.size:
            self._broadcast(rest, root)
        self.bytes_received += length_of(slot) if self.rank != root else 0
        return unpack(slot, rest)

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        check_peer(self, peer)
        slot, rest = pack(as_bytes(data), SMALL)
        for part in (slot, rest.copy()):
            if part.size:
                self.bytes_sent += part.size
                self._call("send", dist.send, self._stage(part), self._global(peer), tag=tag)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        check_peer(self, peer)
        slot = self._receive(np.zeros(HEADER + SMALL, np.uint8), peer, tag)
        self.bytes_received += length_of(slot)
        return unpack(slot, self._receive(_rest_for(slot), peer, tag))

    def barrier(self) -> None:
        # On NCCL dist.barrier guesses a device; a one-byte all_reduce uses ours.
        self.all_reduce(np.zeros(1, np.uint8))

    def close(self) -> None:
        """Lets go of the group, whose sockets close with the last reference, and only then of what it may write to."""
        self._close_splits()
        self._closed = True
        group, self._group = self._group, None
        if self._own and group is not None:
            drop(group)
        del group
        self._abandoned.clear()
        self._slots.clear()
        self._pairs.clear()

    def beside(self, group: dist.ProcessGroup | None) -> TorchCommunicator:
        """One over another group of the same ranks, which stays open; its traffic counts in this one's."""
        other = TorchCommunicator(group)
        self._splits = (*self._splits, other)
        return other

    def _part(self, members: Sequence[int]) -> TorchCommunicator:
        parent = self._group or dist.group.WORLD
        assert parent is not None
        part = TorchCommunicator(new_group(parent, [self._global(rank) for rank in members], "split"))
        part._own = True
        return part

    def _gather_equal(self, mine: Bytes, everyone: Bytes) -> None:
        source, target = self._stage(mine), self._stage(everyone, filled=False)
        self._collective("all_gather", mine.size, ALL_GATHER, target, source)
        self._unstage(target, everyone)

    def _swap(self, mine: Bytes, sizes: list[int], found: Bytes, found_sizes: list[int]) -> None:
        source, target = self._stage(mine), self._stage(found, filled=False)
        self._collective("all_to_all", mine.size, dist.all_to_all_single, target, source, found_sizes, sizes)
        self._unstage(target, found)

    def _broadcast(self, buffer: Bytes, root: int) -> None:
        tensor = self._stage(buffer)
        sent = buffer.size if root == self.rank else 0
        self._collective("broadcast", sent, dist.broadcast, tensor, self._global(root))
        self._unstage(tensor, buffer)

    def _receive(self, buffer: Bytes, peer: int, tag: int) -> Bytes:
        if buffer.size:
            tensor = self._stage(buffer, filled=False)
            self._call("recv", dist.recv, tensor, self._global(peer), tag=tag)
            self._unstage(tensor, buffer)
        return buffer

    def _global(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)

    def _stage(self, array: Array, filled: bool = True) -> torch.Tensor:
        """The array's memory itself on CPU; on a device, a tensor from torch's caching allocator."""
        host = torch.from_numpy(array)
        if self._device == CPU:
            return host
        staged = torch.empty_like(host, device=self._device)
        return staged.copy_(host) if filled else staged

    def _unstage(self, tensor: torch.Tensor, array: Array) -> None:
        if self._device != CPU:
            torch.from_numpy(array).copy_(tensor)

    def _collective(self, name: str, nbytes: int, fn: Callable[..., Any], *args: Any) -> Any:
        self.collectives += 1
        self.bytes_sent += nbytes
        return self._call(name, fn, *args)

    def _call(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._closed:
            raise CommError(f"{name}: the communicator is closed")
        try:
            return fn(*args, group=self._group, **kwargs)
        except (RuntimeError, ValueError) as error:
            # Gloo may still write into the buffers of a collective that failed.
            self._abandoned += args
            # Frames in torch hold the group, and whoever keeps the error would keep its sockets open.
            traceback.clear_frames(error.__traceback__)
            raise translate(name, error) from None


def _start_all_reduce(tensor: torch.Tensor, op: Any, group: dist.ProcessGroup | None) -> dist.Work:
    """`dist.all_reduce`, without what that does besides: this is called while backward waits."""
    options = dist.AllreduceOptions()
    options.reduceOp = op
    found = group or dist.group.WORLD
    assert found is not None
    return found.allreduce([tensor], options)


def _rest_for(slot: Bytes) -> Bytes:
    return np.empty(max(0, length_of(slot) - SMALL), np.uint8)


def translate(name: str, error: Exception) -> CommError:
    """Torch tells a timeout from other failures only in its message."""
    text = str(error)
    late = any(word in text.lower() for word in ("timed out", "timeout"))
    return (CommTimeout if late else CommError)(f"{name}: {text}")


def _default_device(group: dist.ProcessGroup | None) -> torch.device:
    devices = devices_of(group)
    if "cpu" in devices:
        return CPU
    return torch.device(devices[0], torch.get_device_module(devices[0]).current_device())
