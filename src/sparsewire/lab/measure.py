"""Timing on a shared, noisy machine: cases are interleaved, and the minimum is reported."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from .. import kernels
from ..errors import SparsewireError
from ..kernels import Array

Run = Callable[[], object]
Advance = Callable[[str], None]
BURST, CALLS = 0.02, 3


def interleaved(
    runs: Mapping[str, Run], repeat: int, advance: Advance, slow: frozenset[str] = frozenset()
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
            best[name] = min(best[name], least(run, calls=1 if name in slow else CALLS))
    return best


def least(run: Run, calls: int = CALLS) -> float:
    """Least seconds of a burst of at least `calls` calls and 20 ms, so that short runs find warm caches."""
    best, end = float("inf"), time.perf_counter() + BURST
    while calls > 0 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        calls -= 1
    return best


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def need_for_picture(path: Path | None) -> None:
    """Before the work: a picture that is asked for can be drawn."""
    if path is not None and not has("matplotlib"):
        raise SparsewireError("a picture needs matplotlib: pip install matplotlib")


def machine() -> dict[str, Any]:
    """Hardware and software versions, which timings depend on."""
    native = kernels.native() if kernels.backend() == "native" else None
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": _version("torch"),
        "kernels": kernels.backend(),
        "isa": native.isa() if native else None,
        "threads": kernels.threads,
    }


def machine_line(facts: Mapping[str, Any]) -> str:
    torch = f", torch {facts['torch']}" if facts["torch"] else ""
    isa = f" ({facts['isa']})" if facts["isa"] else ""
    load = "" if facts["load"] is None else f" (load {facts['load']})"
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    software = f"Python {facts['python']}, NumPy {facts['numpy']}{torch}"
    return f"{facts['cpu']}, {facts['cores']} cores{load}; {software}; {facts['kernels']} kernels{isa}, {threads}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """A function to call with the name of each step; shows a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda name: None
    elif has("rich"):
        yield from _rich_bar(total)
    else:
        yield from _plain_line(total)


def _rich_bar(total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def _plain_line(total: int) -> Iterator[Advance]:
    done = 0

    def advance(name: str) -> None:
        nonlocal done
        done += 1
        print(f"\r\033[K{done}/{total} {name}", end="", file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


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
