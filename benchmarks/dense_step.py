"""What a dense step of the averager costs beside one all_reduce of the same bytes, in one process.

    python benchmarks/dense_step.py [--numel 25000000] [--ranks 1 2] [--engine threads gloo] [--processor]

Ranks are threads of this process. `gloo` is one rank of torch's engine, which adds up in the array's own memory.
Times are medians over steps of the slowest rank, in milliseconds; all kinds of step alternate. `--processor` counts the
process's time on its cores instead, where the machine has other work as well.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.kernels import Array
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

MEMORIES = ("none", "residual", "gain", "dgc", "gmc")
STEPS = 15


def averager(comm: Communicator, memory: str) -> Averager:
    """An averager whose steps are all dense."""
    scheme = sw.scheme(f"topk(1%) | memory={memory}")
    return Averager(comm, Settings(SchemeSchedule(scheme, warmup_steps=10**6)))


Clock = Callable[[], float]


def milliseconds(comm: Communicator, call: Callable[[], object], clock: Clock) -> float:
    comm.barrier()
    start = clock()
    call()
    comm.barrier()
    return 1e3 * (clock() - start)


def measure(comm: Communicator, numel: int, clock: Clock) -> dict[str, float]:
    """Medians by kind of step; means stay in x, as gradients of the same size."""
    x = np.random.default_rng(comm.rank).standard_normal(numel, np.float32)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: comm.all_reduce(x),
        "all_reduce_in_place": lambda: comm.all_reduce_in_place(x),
        **{f"dense step, memory={memory}": partial(step, averager(comm, memory), x) for memory in MEMORIES},
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(STEPS):
        for name, call in calls.items():
            times[name].append(milliseconds(comm, call, clock))
        np.divide(x, comm.size, out=x)
    return {name: statistics.median(taken) for name, taken in times.items()}


def step(one: Averager, x: Array) -> None:
    one.put({"w": x})
    one.finish()


def on_gloo(numel: int, clock: Clock) -> dict[str, float]:
    import torch.distributed as dist

    from sparsewire.comm import TorchCommunicator

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return measure(TorchCommunicator(), numel, clock)
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--engine", nargs="*", default=["threads", "gloo"], choices=["threads", "gloo"])
    parser.add_argument("--processor", action="store_true")
    told = parser.parse_args()
    clock = time.process_time if told.processor else time.perf_counter
    rows = [(f"threads, {size}", run_ranks(size, lambda comm: measure(comm, told.numel, clock))[0])
            for size in told.ranks if "threads" in told.engine]  # fmt: skip
    rows += [("gloo, 1", on_gloo(told.numel, clock))] if "gloo" in told.engine else []
    for engine, times in rows:
        for name, taken in times.items():
            print(f"{engine:12} {name:28} {taken:8.1f} ms  {taken / times['all_reduce']:5.2f} ×")


if __name__ == "__main__":
    main()
