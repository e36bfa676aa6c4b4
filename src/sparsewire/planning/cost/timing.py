"""Timing on a shared, noisy machine, where cases are interleaved and the minimum is reported; and what is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array

Run = Callable[[], object]
Advance = Callable[[str], None]
BURST, CALLS = 0.02, 3


def interleaved(
    runs: Mapping[str, Run], repeat: int, advance: Advance, slow: frozenset[str] = frozenset(), burst: float = BURST
) -> dict[str, float]:
    """Least seconds of each run over `repeat` rounds of bursts; a slow one is called once a round.

    Each is called once beforehand without timing: a first call can take ten times as long (page faults), and a cold
    baseline would make the others look better than they are.
    """
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(repeat):
        for name, run in runs.items():
            advance(name)
            if turn == 0:
                run()
            best[name] = min(best[name], least(run, 1 if name in slow else CALLS, burst))
    return best


def least(run: Run, calls: int = CALLS, burst: float = BURST) -> float:
    """Least seconds of a burst of at least `calls` calls and 20 ms, so that short runs find warm caches."""
    best, end = float("inf"), time.perf_counter() + burst
    while calls > 0 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        calls -= 1
    return best


# --- inputs ------------------------------------------------------------------------------------------------------


def noise(count: int, seed: int = 0) -> Array:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(count, np.float32)


def uniform_indices(numel: int, count: int, seed: int = 0) -> Array:
    """`count` of `numel` indices, ascending, drawn uniformly without replacement."""
    chosen = np.random.default_rng(seed).choice(numel, count, replace=False, shuffle=False)
    return np.sort(chosen).astype(kernels.index_dtype(numel))


def share(ratio: float, numel: int) -> int:
    """The number of entries that a ratio of `numel` selects, at least one."""
    return min(numel, max(1, round(ratio * numel)))


def values(count: int, seed: int) -> Array:
    """Values of 1 + |normal| with random signs: as of a selection of the largest."""
    normal = noise(count, seed)
    return normal + np.copysign(np.float32(1), normal)
