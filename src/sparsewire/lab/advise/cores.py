"""What the ranks of a machine share: its cores. How much of them a step leaves, and an exchange takes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from sparsewire.comm import Communicator
from sparsewire.planning.auto.trial import probe_size
from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.training.nodes.nodes import kernel_name

from .. import measure

SUMMED, CAST = 1 << 24, 1 << 22  # bytes of an all_reduce whose work is timed, at most; elements that are cast
SECONDS, ROUNDS = 0.5, 3  # that an all_reduce takes at most


def ranks_here(comm: Communicator) -> int:
    """How many ranks run on this machine. Every rank calls it."""
    return [bytes(name) for name in comm.all_gather(kernel_name().encode(), "kernel")].count(kernel_name().encode())


def spare(used: float, ranks: int) -> float:
    """How much of a core each rank has left, if each of so many uses this many; at most 1."""
    return min(1.0, max(0.0, (os.cpu_count() or 1) / ranks - used))


def with_busy(link: NetworkSpeed, comm: Communicator, ranks: int) -> NetworkSpeed:
    """The link with the part of an all_reduce's time in which the cores that these ranks share are busy."""
    numbers = np.zeros(probe_size(link.byte, comm.size, SECONDS, SUMMED) // 4, np.float32)
    comm.all_reduce(numbers)
    start, used = time.perf_counter(), time.process_time()
    comm.all_reduce(numbers)
    taken = (time.process_time() - used) / (time.perf_counter() - start)
    seconds = comm.all_reduce(np.array([taken])).item() / comm.size
    return replace(link, busy=min(1.0, seconds * ranks / (os.cpu_count() or 1)))


def casting(comm: Communicator, link: NetworkSpeed) -> float:
    """Seconds per element of torch's fp16 hook beyond its bytes, on average over the ranks. Every rank calls it."""
    comm.barrier()
    summed = probe_size(link.byte, comm.size, SECONDS, 2 * CAST) // 4
    mine = _cast_seconds() + _sum_seconds(summed) if measure.has("torch") else 0.0
    return comm.all_reduce(np.array([mine])).item() / comm.size


def _cast_seconds() -> float:
    """To float16 and back, and the division before it."""
    import torch

    x, best = torch.ones(CAST), float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        x.copy_(x.to(torch.float16).div_(2))
        best = min(best, time.perf_counter() - start)
    return best / CAST


def _sum_seconds(count: int) -> float:
    """How much longer an element of an all_reduce takes in float16 than half an element, one of `count`, in float32."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        return 0.0
    halves, wholes = torch.zeros(2 * count, dtype=torch.float16), torch.zeros(count)
    return max(0.0, _reduced(halves) - _reduced(wholes)) / (2 * count)


def _reduced(numbers: Any) -> float:
    import torch.distributed as dist

    best = float("inf")
    for _ in range(ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(numbers)
        best = min(best, time.perf_counter() - start)
    return best
