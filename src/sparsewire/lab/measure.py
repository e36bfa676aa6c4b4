"""Shared by measurements: a description of the machine, a progress bar; timing and inputs come from `cost`."""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.errors import InputError, SparsewireError
from sparsewire.planning.cost.timing import Advance
from sparsewire.planning.cost.timing import Run as Run
from sparsewire.planning.cost.timing import interleaved as interleaved
from sparsewire.planning.cost.timing import least as least
from sparsewire.planning.cost.timing import noise as noise
from sparsewire.planning.cost.timing import share as share
from sparsewire.planning.cost.timing import uniform_indices as uniform_indices

from .bar import Bar


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def require(what: str, *packages: str, extra: str) -> None:
    """Before the work: the packages that it needs are installed."""
    missing = [name for name in packages if not has(name)]
    if missing:
        raise InputError(f"{what} needs {' and '.join(missing)}: pip install 'sparsewire[{extra}]'")


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
        "torch": version_of("torch"),
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


def version_of(package: str) -> str | None:
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
    done = itertools.count(1)
    with Bar(total) as bar:
        yield lambda name: bar.show(name, next(done))
