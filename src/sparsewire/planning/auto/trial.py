"""Measurements of this machine and its network for the cost model: codecs on noise, and all_reduces of two sizes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator, run_ranks
from sparsewire.kernels import Array
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

from ..cost.coded import coded
from ..cost.model import NetworkSpeed
from ..cost.step import Codecs, coding
from ..cost.timing import noise, share
from ..cost.volume import all_reduce

MOST, CODED = 1 << 24, 1 << 20  # elements of the noise: more than caches hold; and of what is coded
SECONDS, STEPS = 0.05, 4  # that steps on it are timed for; and steps, at least
PROBE = (1 << 17, 1 << 22)  # bytes of a probe, at least and at most
REPEAT = 2  # all_reduces of it that count; one more does not
LEAST = 1e-12  # seconds per byte
BURST = 0.004  # seconds that each codec is timed for
Timer = Callable[[], float]


def measure_codecs(plan: Scheme, numel: int, timer: Timer = time.perf_counter) -> Codecs:
    """Of one rank, on noise. All ranks of a machine should do it at the same time."""
    size = max(1, min(numel, MOST))
    (front, back, sent), *_ = run_ranks(1, lambda comm: _steps(comm, coding(plan), size, timer))
    density = max(1.0, sent) / size
    few = min(size, CODED)
    speeds = coded(coding(plan)).speeds(share(density, few), few, rounds=2, burst=BURST)
    whole = [a + b for a, b in zip(front, back, strict=True)]
    sharing = max(1.0, statistics.median(whole) / min(whole))
    return Codecs(min(front) / size, min(back) / size, sharing, density, speeds)


def _steps(comm: Communicator, plan: Scheme, size: int, timer: Timer) -> tuple[list[float], list[float], float]:
    """Seconds of both phases of an averager's steps, after one that is not timed; entries sent in each."""
    sent: list[int] = []
    settings = Settings(SchemeSchedule(plan), dense_below=0, on_sent=lambda name, part: sent.append(part.count))
    averager, x, numbers = Averager(comm, settings), noise(size), np.empty(size, np.float32)
    _step(averager, x, numbers, timer)
    spent: list[tuple[float, float]] = []
    end = timer() + SECONDS
    while len(spent) < STEPS or timer() < end:
        spent.append(_step(averager, x, numbers, timer))
    return [front for front, _ in spent], [back for _, back in spent], sum(sent) / len(sent)


def _step(averager: Averager, x: Array, numbers: Array, timer: Timer) -> tuple[float, float]:
    numbers[:] = x
    start = timer()
    averager.put({"w": numbers})
    middle = timer()
    averager.finish()
    return middle - start, timer() - middle


def probe(
    comm: Communicator, nbytes: int, repeat: int = REPEAT, timer: Timer = time.perf_counter
) -> tuple[float, float]:
    """Least seconds of an all_reduce of one number, which lets the ranks meet, and of one of so many bytes after it.

    The first of each is not counted: it waits for ranks that come late, and a link that was idle may let some bytes
    pass at once (a token bucket).
    """
    spent = []
    for count in [1, max(1, nbytes // 4)] * (1 + repeat):
        numbers, start = np.zeros(count, np.float32), timer()
        comm.all_reduce(numbers)
        spent.append(timer() - start)
    return min(spent[2::2]), min(spent[3::2])


def network_of(small: float, large: float, nbytes: int, size: int) -> NetworkSpeed:
    """α and β, from the seconds of an all_reduce of next to nothing and of one of so many bytes."""
    return NetworkSpeed(
        latency_of(small, size), max(large / 10, large - small) / max(1.0, all_reduce(nbytes, size).sent)
    )


def latency_of(small: float, size: int) -> float:
    """α, from the seconds of an all_reduce of next to nothing."""
    return small / max(1.0, all_reduce(0.0, size).rounds)


def probe_size(byte: float, size: int, seconds: float, most: int = PROBE[1]) -> int:
    """Bytes of an array whose all_reduce takes so many seconds, at β seconds per byte; within limits."""
    moved = all_reduce(1.0, size).sent or 1.0
    return int(min(most, max(PROBE[0], seconds / max(byte, LEAST) / moved)))


def measure_network(comm: Communicator, seconds: float, most: int = PROBE[1], repeat: int = REPEAT) -> NetworkSpeed:
    """Latency and rate, by probes that take about so long and have `most` bytes at most. Every rank calls it.

    The slowest rank's link makes an all_reduce slow for all of them, so the least that any measured is without a pause.
    Latency is what ranks that share cores wait for each other, too: that of the slowest.
    """
    nbytes, network = PROBE[0], NetworkSpeed(0.0, 0.0)
    for _ in range(2):
        small, large = probe(comm, nbytes, repeat)
        slowest, least, large = comm.all_reduce(np.array([small, -small, -large]), "max").tolist()
        network = replace(network_of(-least, -large, nbytes, comm.size), latency=latency_of(slowest, comm.size))
        nbytes = probe_size(network.byte, comm.size, seconds, most)
    return network


def survey(comm: Communicator, plans: Sequence[Scheme], numel: int) -> dict[Scheme, Codecs]:
    """What these schemes' codecs cost, on average over the ranks, by `coding(plan)`. Every rank calls it.

    How much the ranks slow each other down does not depend on the scheme: it is the median of what was measured.
    """
    kinds = list(dict.fromkeys(map(coding, plans)))
    comm.barrier()  # ranks that share cores are to be measured together
    costs = [measure_codecs(kind, numel) for kind in kinds]
    sharing = statistics.median(codecs.sharing for codecs in costs)
    rows = np.array([replace(codecs, sharing=sharing).numbers for codecs in costs])
    agreed = comm.all_reduce(rows.reshape(-1)).reshape(rows.shape) / comm.size
    return {kind: Codecs.of(numbers) for kind, numbers in zip(kinds, agreed.tolist(), strict=True)}
