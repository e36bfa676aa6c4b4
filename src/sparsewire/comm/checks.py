"""Arguments that no engine accepts are refused with the same error on every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sparsewire.errors import CommArgumentError

from .buffers import DTYPES, OPS, Array, BytesLike


class Member(Protocol):
    """A rank of a group."""

    rank: int
    size: int


def check_reducible(array: Array, op: str) -> None:
    """Refuses an array or an operation that some engine would refuse, crash on or add up differently."""
    if op not in OPS:
        raise CommArgumentError(f"all_reduce knows {', '.join(OPS)}, not {op!r}")
    if array.dtype not in DTYPES:
        raise CommArgumentError(f"all_reduce does not carry {array.dtype}")
    if op == "bor" and array.dtype.kind == "f":
        raise CommArgumentError(f"bor needs integers, not {array.dtype}")


def check_contiguous(array: Array) -> None:
    """Refuses an array in whose memory no engine could add up."""
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise CommArgumentError("all_reduce_in_place needs a contiguous array that can be written to")


def check_parts(comm: Member, parts: Sequence[BytesLike]) -> None:
    if len(parts) != comm.size:
        raise CommArgumentError(f"all_to_all takes a payload for each of {comm.size} ranks, not {len(parts)}")


def check_root(comm: Member, root: int) -> None:
    if not 0 <= root < comm.size:
        raise CommArgumentError(f"rank {root} is not in a group of {comm.size}")


def check_peer(comm: Member, peer: int) -> None:
    check_root(comm, peer)
    if peer == comm.rank:
        raise CommArgumentError(f"rank {peer} cannot send to or receive from itself")
