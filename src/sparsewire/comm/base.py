"""What an exchange may ask of the network, whatever the network is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import CommArgumentError
from ..sparse import from_bfloat16, to_bfloat16

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Halves: TypeAlias = npt.NDArray[np.uint16]
BytesLike: TypeAlias = "bytes | bytearray | memoryview | Array"

OPS = ("sum", "max", "bor")
# What gloo, NCCL and MPI all add up; a wider list would work on one engine and fail on the next.
DTYPES = frozenset(np.dtype(name) for name in ("float32", "float64", "int8", "int32", "int64", "uint8"))


class Traffic(NamedTuple):
    """What a rank has handed to the engine, and the payloads that came back."""

    collectives: int
    bytes_sent: int
    bytes_received: int


class Communicator(ABC):
    """One rank's end of a group. Every rank calls the same collectives in the same order, from one thread.

    `collectives` and `bytes_sent` count what this rank handed to the engine, padding and lengths included,
    so reported traffic is what really left. `bytes_received` counts the payloads that came back. Those are this group's
    own; `traffic()` has those of the groups that it was split into as well.
    """

    rank: int
    size: int
    collectives: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    _splits: tuple[Communicator, ...] = ()

    @abstractmethod
    def all_gather(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        """Every rank's bytes, in rank order; lengths may differ.

        The views are read-only and hold until the next all_gather, because buffers are reused. Give each stream of
        similar sizes (a bucket, a parameter) its own channel: a channel remembers how large its payloads are, and
        needs one collective instead of two.
        """

    @abstractmethod
    def all_to_all(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        """What every rank has for this one, in rank order: `parts` has a payload for each, and lengths may differ.

        The own part comes back as it is and is no traffic. Views and channels are as in `all_gather`: while every
        pair's payloads keep about their size, one collective moves them.
        """

    @abstractmethod
    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        """A new array, combined over the ranks by `sum`, `max` or `bor`; the same bits on every rank."""

    @abstractmethod
    def sum_bfloat16(self, bits: Halves) -> Halves:
        """The sum over the ranks of bfloat16 numbers, which NumPy lacks, as their bits; each addition is rounded.

        2 bytes a number travel; the same bits on every rank.
        """

    @abstractmethod
    def broadcast(self, data: BytesLike | None, root: int = 0) -> bytes:
        """The root's bytes on every rank; what the others pass is ignored."""

    @abstractmethod
    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        """Send to one rank; may block until the peer receives."""

    @abstractmethod
    def recv(self, peer: int, tag: int = 0) -> bytes:
        """The next bytes that `peer` sent here with this tag; messages keep their order."""

    @abstractmethod
    def barrier(self) -> None:
        """Return once every rank has called it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of buffers and of what was split off; the user's own process group stays open."""

    @abstractmethod
    def _part(self, members: Sequence[int]) -> Communicator:
        """The part of `split` that is the engine's: a group of these ranks, of which this one is one."""

    def split(self, color: int) -> Communicator:
        """A group of the ranks that give the same color (0 or more), in the order of their ranks. Every rank calls it.

        It waits as long as this group does and closes with it, or before; its traffic counts in this group's.

        >>> from sparsewire.comm import run_ranks
        >>> run_ranks(4, lambda comm: repr(comm.split(comm.rank % 2)))[2]
        'ThreadCommunicator(rank=1, size=2)'
        """
        if not 0 <= color < 2**63:
            raise CommArgumentError(f"split: a color is 0 or more and below 2**63, not {color}")
        mine = color.to_bytes(8, "little")
        colors = [bytes(part) for part in self.all_gather(mine, "split")]
        part = self._part([rank for rank, other in enumerate(colors) if other == mine])
        self._splits = (*self._splits, part)
        return part

    def traffic(self) -> Traffic:
        """This group's, and that of all groups that were split from it, closed or not."""
        counts = [(self.collectives, self.bytes_sent, self.bytes_received), *(one.traffic() for one in self._splits)]
        return Traffic(*map(sum, zip(*counts, strict=True)))

    def _close_splits(self) -> None:
        for part in self._splits:
            part.close()

    def _count(self, parts: list[memoryview]) -> list[memoryview]:
        self.bytes_received += sum(len(part) for rank, part in enumerate(parts) if rank != self.rank)
        return parts

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"


def as_bytes(data: BytesLike) -> Bytes:
    """The payload as a flat uint8 array, without a copy where its memory is contiguous."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return np.frombuffer(view if view.c_contiguous else view.tobytes(), np.uint8)


def check_reducible(array: Array, op: str) -> None:
    """Refuse here what some engine would refuse, crash on or add up differently."""
    if op not in OPS:
        raise CommArgumentError(f"all_reduce knows {', '.join(OPS)}, not {op!r}")
    if array.dtype not in DTYPES:
        raise CommArgumentError(f"all_reduce does not carry {array.dtype}")
    if op == "bor" and array.dtype.kind == "f":
        raise CommArgumentError(f"bor needs integers, not {array.dtype}")


def add_bfloat16(a: Halves, b: Halves) -> Halves:
    """The sum of two arrays of bfloat16 numbers, as an engine without them is told to add."""
    with np.errstate(all="ignore"):
        return to_bfloat16(from_bfloat16(a) + from_bfloat16(b))


def check_parts(comm: Communicator, parts: Sequence[BytesLike]) -> None:
    if len(parts) != comm.size:
        raise CommArgumentError(f"all_to_all takes a payload for each of {comm.size} ranks, not {len(parts)}")


def check_root(comm: Communicator, root: int) -> None:
    if not 0 <= root < comm.size:
        raise CommArgumentError(f"rank {root} is not in a group of {comm.size}")


def check_peer(comm: Communicator, peer: int) -> None:
    check_root(comm, peer)
    if peer == comm.rank:
        raise CommArgumentError(f"rank {peer} cannot send to or receive from itself")
