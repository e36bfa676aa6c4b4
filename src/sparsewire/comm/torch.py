"""Ranks of a torch.distributed process group."""

from __future__ import annotations

import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from sparsewire.errors import CommError, CommTimeout

from . import background, process_group
from .base import Communicator
from .buffers import Array, BFloat16Bits, Bytes, BytesLike, as_bytes
from .checks import check_contiguous, check_peer, check_reducible
from .groups import drop, new_group
from .pairs import peers_by_round
from .process_group import CPU
from .slots import HEADER, SMALL, length_of, pack, unpack

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend

SUBGROUP_TAG = 0x5357  # of messages inside a part of a group that torch does not know
Group: TypeAlias = "dist.ProcessGroup | Backend"
RELEASE = 0.5  # seconds
_open: weakref.WeakSet[TorchCommunicator] = weakref.WeakSet()


class TorchCommunicator(Communicator):
    """A rank of a torch process group of any backend. It waits as long as the group's own timeout.

    The group is torch's own, a backend made by hand (`ProcessGroupGloo(store, rank, size)`) or a subclass of
    `ProcessGroup`, such as torchft's. `rank` is only needed for a group that does not know it.
    Everything travels as plain uint8 or as the reduced dtype: gloo knows no float8 and no unsigned 16 or 32.
    `device` is where the engine wants its buffers: by default the CPU if it can, else the accelerator in use.
    """

    def __init__(
        self, group: Group | None = None, device: torch.device | str | None = None, rank: int | None = None
    ) -> None:
        used = process_group.default_group() if group is None else group
        rank = process_group.rank_in(used) if rank is None else rank
        super().__init__(rank, used.size())
        self._group: Any = group
        self._device = torch.device(device) if device is not None else process_group.default_device(used)
        self._abandoned: list[Any] = []
        self._told = 0  # bytes that whoever watches knows of
        self._owns_group = False  # whether the group ends with this communicator
        self._lent: deque[weakref.ref[Array]] = deque(maxlen=64)  # the last arrays that the engine was given
        self._reduced: deque[torch.Tensor] = deque(maxlen=16)  # the last tensors; see `_await_release`
        _open.add(self)

    @property
    def device(self) -> torch.device:
        """Where the engine wants its buffers."""
        return self._device

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        check_reducible(array, op)
        if op == "bor" and self._device != CPU:  # NCCL and its like know no bitwise operations
            return super().all_reduce(array, op)
        return self._reduce(np.array(array, order="C"), op)

    def all_reduce_in_place(self, array: Array, op: str = "sum") -> None:
        check_reducible(array, op)
        check_contiguous(array)
        if op == "bor" and self._device != CPU:
            super().all_reduce_in_place(array, op)
        else:
            self._reduce(array, op)

    def sum_bfloat16(self, bits: BFloat16Bits) -> BFloat16Bits:
        """Gloo and NCCL know bfloat16; NumPy hands its bits over as int16."""
        return self._reduce(bits.view(np.int16).copy(), "sum", torch.bfloat16).view(np.uint16)

    def start_all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> dist.Work:
        """Begins to combine a tensor over the ranks in its own memory; it lies where the engine wants its buffers.

        No other collective may begin elsewhere before it has ended: ranks would take them in different orders.
        """
        nbytes = tensor.numel() * tensor.element_size()
        self.bytes_received += nbytes
        numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        self._reduced += (tensor, numbers)
        work: dist.Work = self._collective("all_reduce", nbytes, process_group.start_all_reduce, numbers, op)
        return work

    def start_all_to_all(
        self, target: torch.Tensor, source: torch.Tensor, to: Sequence[int], of: Sequence[int]
    ) -> dist.Work:
        """Begins to send `to[rank]` elements of the source to each rank and to fill the target with `of[rank]` of each.

        What is said of `start_all_reduce` holds for it, too.
        """
        width = source.element_size()
        self.bytes_received += sum(of) * width
        self._reduced += (target, source)
        call, sizes = process_group.start_all_to_all, (list(to), list(of))
        work: dist.Work = self._collective("all_to_all", sum(to) * width, call, target, source, *sizes)
        return work

    def _reduce(self, total: Array, op: str, dtype: torch.dtype | None = None) -> Array:
        """In the array's own memory; `dtype` is what its bits stand for, if NumPy has no name for that."""
        if total.size:
            tensor = self._stage(total)
            self.bytes_received += total.nbytes
            numbers = tensor if dtype is None else tensor.view(dtype)
            self._collective("all_reduce", total.nbytes, process_group.all_reduce, numbers, op)
            self._unstage(tensor, total)
        return total

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        check_peer(self, peer)
        slot, rest = pack(as_bytes(data), SMALL)
        for part in (slot, rest.copy()):
            if part.size:
                self.bytes_sent += part.size
                self._send("send", part, peer, tag)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        check_peer(self, peer)
        slot = self._receive("recv", np.zeros(HEADER + SMALL, np.uint8), peer, tag)
        self.bytes_received += length_of(slot)
        rest = np.empty(max(0, length_of(slot) - SMALL), np.uint8)
        return unpack(slot, self._receive("recv", rest, peer, tag))

    def barrier(self) -> None:
        # On NCCL dist.barrier guesses a device; a one-byte all_reduce uses ours.
        self.all_reduce(np.zeros(1, np.uint8))

    def _release_group(self) -> None:
        """Lets go of the group, whose sockets close with the last reference, and only then of what it may write to."""
        group, self._group = self._group, None
        if self._owns_group and group is not None:
            drop(group)
        self._await_release()
        del group
        self._abandoned.clear()
        self._reduced.clear()

    def _await_release(self) -> None:
        """Until gloo's threads have let go of the arrays of collectives that have ended, which takes the interpreter's
        lock: torch 2.4 and 2.5 hold that while they end a group and wait for these threads. Tensors are kept until
        then, so that the threads do not have to free them."""
        end = time.monotonic() + RELEASE
        while any(array() is not None for array in self._lent) and time.monotonic() < end:
            time.sleep(0.001)

    def beside(self, group: dist.ProcessGroup | None, owns: bool = False) -> TorchCommunicator:
        """One over another group of the same ranks; its traffic counts in this one's. The group stays open, unless the
        communicator `owns` it."""
        other = TorchCommunicator(group)
        other._owns_group = owns
        self._splits = (*self._splits, other)
        return other

    def _subgroup(self, members: Sequence[int]) -> Communicator:
        """A new group of torch's; parts of a group that torch does not know talk by that group's messages."""
        parent = self._group if self._group is not None else process_group.default_group()
        ranks = process_group.global_ranks(parent)
        if ranks is None:
            return super()._subgroup(members)
        part = TorchCommunicator(new_group(parent, [ranks[rank] for rank in members], "split"))
        part._owns_group = True
        return part

    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        if len(members) < self.size:
            self._gather_by_messages(call, mine, everyone, members)
        else:
            source, target = self._stage(mine), self._stage(everyone, filled=False)
            self._call(call, process_group.all_gather, target, source)
            self._unstage(target, everyone)

    def _gather_by_messages(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        place, rows = members.index(self.rank), everyone.reshape(len(members), -1)
        rows[place] = mine
        for other in peers_by_round(place, len(members)):
            if place < other:  # NCCL may hold a send back until it is received
                self._send(call, mine, members[other], SUBGROUP_TAG)
            self._receive(call, rows[other], members[other], SUBGROUP_TAG)
            if place > other:
                self._send(call, mine, members[other], SUBGROUP_TAG)

    def _all_to_all_sized(self, mine: Bytes, sizes: list[int], received: Bytes, received_sizes: list[int]) -> None:
        source, target = self._stage(mine), self._stage(received, filled=False)
        self._collective("all_to_all", mine.size, process_group.all_to_all, target, source, sizes, received_sizes)
        self._unstage(target, received)

    def _broadcast_equal(self, buffer: Bytes, root: int) -> None:
        tensor = self._stage(buffer)
        sent = buffer.size if root == self.rank else 0
        self._collective("broadcast", sent, process_group.broadcast, tensor, root)
        self._unstage(tensor, buffer)

    def _send(self, call: str, buffer: Bytes, peer: int, tag: int) -> None:
        self._call(call, process_group.send, self._stage(buffer), peer, tag)

    def _receive(self, call: str, buffer: Bytes, peer: int, tag: int) -> Bytes:
        if buffer.size:
            tensor = self._stage(buffer, filled=False)
            self._call(call, process_group.recv, tensor, peer, tag)
            self._unstage(tensor, buffer)
        return buffer

    def _stage(self, array: Array, filled: bool = True) -> torch.Tensor:
        """The array's memory itself on CPU; on a device, a tensor from torch's caching allocator."""
        view = array.view()
        self._lent.append(weakref.ref(view))
        host = torch.from_numpy(view)
        if self._device == CPU:
            return host
        staged = torch.empty_like(host, device=self._device)
        return staged.copy_(host) if filled else staged

    def _unstage(self, tensor: torch.Tensor, array: Array) -> None:
        if self._device != CPU:
            torch.from_numpy(array).copy_(tensor)

    def _collective(self, name: str, nbytes: int, fn: Callable[..., Any], *args: Any) -> Any:
        self._begin(name, nbytes)
        return self._call(name, fn, *args)

    def _call(self, name: str, fn: Callable[..., Any], *args: Any) -> Any:
        self._check_usable(name)
        start = time.perf_counter()
        try:
            return fn(*args, self._group if self._group is not None else process_group.default_group())
        except (RuntimeError, ValueError) as error:
            # Gloo may still write into the buffers of a collective that failed.
            self._abandoned += args
            # Frames in torch hold the group, and whoever keeps the error would keep its sockets open.
            traceback.clear_frames(error.__traceback__)
            raise translate(name, error) from None
        finally:
            if self._watch is not None:
                self._watch(name, self.bytes_sent - self._told, start, time.perf_counter())
                self._told = self.bytes_sent


@background.at_end
def _await_all() -> None:
    """A thread of gloo's that lets go of an array when the interpreter has ended aborts the process."""
    for comm in list(_open):
        comm._await_release()


def translate(name: str, error: Exception) -> CommError:
    """Torch tells a timeout from other failures only in its message."""
    text = str(error)
    late = any(word in text.lower() for word in ("timed out", "timeout"))
    return (CommTimeout if late else CommError)(f"{name}: {text}")
