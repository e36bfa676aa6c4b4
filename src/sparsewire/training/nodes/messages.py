"""How the ranks of a machine add up an array and share the parts of its mean: the contract, and one way that is always
there."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from sparsewire.comm import Communicator
from sparsewire.comm.shared_memory import Partition
from sparsewire.kernels import Array


class Adder(Protocol):
    """Adds up arrays of one kind of memory; every way of it gives the same bits."""

    def reduce_scatter(self, array: Any, partition: Partition, out: Any) -> None:
        """Writes this rank's part of the sum over the ranks: its own numbers and then the others', in rank order."""

    def all_gather(self, mine: Any, partition: Partition, array: Any) -> None:
        """Writes every rank's part to its ranges of the array."""


class Messages:
    """Through the communicator, where the ranks have no memory to share."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def reduce_scatter(self, array: Array, partition: Partition, out: Array) -> None:
        parts = [np.concatenate([array[start:stop] for start, stop in ranges]) for ranges in partition.ranges]
        theirs = self._comm.all_to_all(parts, str(partition.digest))
        out[:] = parts[self._comm.rank]
        with np.errstate(all="ignore"):
            for rank, numbers in enumerate(theirs):
                if rank != self._comm.rank:
                    out += np.frombuffer(numbers, array.dtype)

    def all_gather(self, mine: Array, partition: Partition, array: Array) -> None:
        everyone = self._comm.all_gather(mine, str(partition.digest))
        for ranges, theirs in zip(partition.ranges, everyone, strict=True):
            numbers, at = np.frombuffer(theirs, mine.dtype), 0
            for start, stop in ranges:
                array[start:stop] = numbers[at : (at := at + stop - start)]
