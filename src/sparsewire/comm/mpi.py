"""Ranks of an MPI communicator, through mpi4py's buffer interface (never pickle)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from sparsewire.errors import CommArgumentError, CommError, CommTimeout

from .base import Communicator
from .buffers import Array, BFloat16Bits, Bytes, BytesLike, add_bfloat16, as_bytes
from .checks import check_contiguous, check_peer, check_reducible

OPS = {"sum": MPI.SUM, "max": MPI.MAX, "bor": MPI.BOR}
SPIN, PAUSE = 1e-3, 5e-5  # seconds; MPI moves data only while someone polls, so pauses stay short


class MPICommunicator(Communicator):
    """A duplicate of `comm` (default: the world), so our messages never meet the caller's own.

    MPI has no timeouts and a lost rank hangs the others; so every call is a non-blocking one that is polled.
    After a timeout the group is of no more use: start the program with `python -m mpi4py`, which aborts all
    ranks on an error that nobody catches.
    """

    def __init__(self, comm: Any = None, timeout: float = 60.0) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        super().__init__(self._comm.Get_rank(), self._comm.Get_size())
        self._timeout = timeout
        self._abandoned: list[Any] = []
        self._add_op: Any = None

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        """MPI-4.1, 6.9.6, requires that all ranks receive identical results."""
        check_reducible(array, op)
        return self._reduce(np.ascontiguousarray(array), OPS[op]).reshape(array.shape)

    def all_reduce_in_place(self, array: Array, op: str = "sum") -> None:
        check_reducible(array, op)
        check_contiguous(array)
        self.bytes_received += array.nbytes
        self._collective("all_reduce", array.nbytes, self._comm.Iallreduce, MPI.IN_PLACE, array, OPS[op])

    def sum_bfloat16(self, bits: BFloat16Bits) -> BFloat16Bits:
        """MPI has no bfloat16, so it is told how to add."""
        if self._add_op is None:
            self._add_op = MPI.Op.Create(_add_bfloat16, commute=True)
        return self._reduce(np.ascontiguousarray(bits), self._add_op)

    def _reduce(self, mine: Array, op: Any) -> Array:
        total = np.empty_like(mine)
        self.bytes_received += mine.nbytes
        self._collective("all_reduce", mine.nbytes, self._comm.Iallreduce, mine, total, op)
        return total

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        check_peer(self, peer)
        message = as_bytes(data)
        self.bytes_sent += message.size
        self._wait("send", self._comm.Isend, message, peer, tag)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        check_peer(self, peer)
        self._check_usable("recv")
        status = MPI.Status()
        messages: list[Any] = []

        def probe() -> bool:
            message = self._comm.Improbe(peer, tag, status)
            messages.extend([message] if message is not None else [])
            return bool(messages)

        self._poll("recv", probe)
        buffer = np.empty(status.Get_count(MPI.BYTE), np.uint8)
        self._wait("recv", messages[0].Irecv, buffer)
        self.bytes_received += buffer.size
        return buffer.tobytes()

    def barrier(self) -> None:
        self._collective("barrier", 0, self._comm.Ibarrier)

    def close(self) -> None:
        """Collective, as freeing a communicator is; a group that timed out is left for the process's end."""
        was_usable = not self._unusable
        super().close()
        if was_usable:
            if self._add_op is not None:
                self._add_op.Free()
            self._comm.Free()

    def _subgroup(self, members: Sequence[int]) -> MPICommunicator:
        split = self._comm.Split(members[0], self.rank)
        group = MPICommunicator(split, self._timeout)
        split.Free()
        return group

    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        if len(members) < self.size:
            raise CommArgumentError(f"{call}: MPI gathers from all ranks of a communicator; use split for some of them")
        self._wait(call, self._comm.Iallgather, mine, everyone)

    def _all_to_all_sized(self, mine: Bytes, sizes: list[int], received: Bytes, received_sizes: list[int]) -> None:
        self._collective("all_to_all", mine.size, self._comm.Ialltoallv, [mine, sizes], [received, received_sizes])

    def _broadcast_equal(self, buffer: Bytes, root: int) -> None:
        sent = buffer.size if root == self.rank else 0
        self._collective("broadcast", sent, self._comm.Ibcast, buffer, root)

    def _collective(self, name: str, nbytes: int, start: Callable[..., Any], *args: Any) -> None:
        self._begin(name, nbytes)
        self._wait(name, start, *args)

    def _wait(self, name: str, start: Callable[..., Any], *args: Any) -> None:
        self._check_usable(name)
        with _translated(name):
            request = start(*args)
        try:
            self._poll(name, request.Test)
        except CommTimeout:
            # A collective cannot be cancelled, so MPI may still write into these buffers.
            self._abandoned += [request, *args]
            self._unusable = f"an earlier {name} timed out"
            raise

    def _poll(self, name: str, done: Callable[[], bool]) -> None:
        begin = time.monotonic()
        with _translated(name):
            while not done():
                waited = time.monotonic() - begin
                if waited > self._timeout:
                    raise CommTimeout(f"{name}: some rank did not arrive within {self._timeout:g} s")
                time.sleep(PAUSE if waited > SPIN else 0)


def _add_bfloat16(part: Any, total: Any, kind: Any) -> None:
    """An MPI operation: total += part."""
    into = np.frombuffer(total, np.uint16)
    into[:] = add_bfloat16(np.frombuffer(part, np.uint16), into)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except MPI.Exception as error:
        raise CommError(f"{name}: {error}") from error
