"""The job of `bench exchange` that ranks run as processes: times every exchange in groups of several sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist

from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator, TorchCommunicator
from sparsewire.kernels import Array
from sparsewire.lab.net.worker import Worker, wire_bytes

from .steps import Workload, run_step

WARMUP = 2  # steps: a channel of all_gather learns its size in the first
PROBE, PADDED = 1 << 20, 17 / 16  # bytes of the message that measures β; all_gather leaves room for a sixteenth more
SMALL, LARGE = 20, 3  # times


def time_exchanges(
    worker: Worker, load: dict[str, Any], cases: Sequence[tuple[str, str]], processes: Sequence[int], steps: int,
    burst: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """For each size: the link as a plain all_gather finds it, and every case's seconds, stages and bytes by step."""
    groups = {size: dist.new_group(list(range(size))) for size in processes}
    measured = []
    for size, group in groups.items():
        if worker.rank < size:
            with TorchCommunicator(group) as comm:
                measured.append({"processes": size, **_group(worker, comm, Workload(**load), cases, steps, burst)})
        dist.barrier()
    return measured


def _group(
    worker: Worker, comm: Communicator, load: Workload, cases: Sequence[tuple[str, str]], steps: int, burst: int
) -> dict[str, Any]:
    latency, byte = probe(comm, burst)
    rows = []
    for exchange, supports in cases:
        x = load.gradient(supports, comm.rank, comm.size)
        rows.append(_times(x, load.plan(exchange), comm, steps))
        worker.emit(name=f"{comm.size} processes, {exchange}, {supports}")
    return {"latency": latency, "byte": byte, "rows": rows}


def probe(comm: Communicator, burst: int) -> tuple[float, float]:
    """α and β of this group: from all_gathers of nothing and of a large message, P−1 rounds each."""
    rounds = max(1, comm.size - 1)
    small, large = _least_gather(comm, 0, SMALL), _least_gather(comm, PROBE, LARGE)
    return small / rounds, max(0.0, large - small) / (rounds * PROBE * PADDED - burst)


def _least_gather(comm: Communicator, nbytes: int, repeat: int) -> float:
    message, spent = np.zeros(nbytes, np.uint8), []
    for _ in range(WARMUP + repeat):
        comm.barrier()
        start = time.perf_counter()
        comm.all_gather(message, f"probe {nbytes}")
        spent.append(time.perf_counter() - start)
    return min(spent[WARMUP:])


def _times(x: Array, plan: Scheme | None, comm: Communicator, steps: int) -> dict[str, Any]:
    seconds, decode = [], []

    def timed(step: int) -> None:
        start = time.perf_counter()
        clock = run_step(x, plan, comm, WARMUP + step)
        seconds.append(time.perf_counter() - start)
        decode.append(clock.seconds.get("decode", 0.0))

    for step in range(WARMUP):
        run_step(x, plan, comm, step)
    sent, quiet = _sent(comm, steps, timed), _sent(comm, steps, lambda step: None)
    return {"seconds": seconds, "decode": decode, "sent": None if sent is None or quiet is None else sent - quiet}


def _sent(comm: Communicator, steps: int, run: Callable[[int], None]) -> float | None:
    """Bytes per step that this process sends over TCP, with those of the barriers between steps."""
    comm.barrier()  # a count taken while another rank is behind would miss bytes that are still to be sent
    before = wire_bytes()
    for step in range(steps):
        comm.barrier()
        run(step)
    comm.barrier()
    now = wire_bytes()
    return None if now is None or before is None else (now - before) / steps
