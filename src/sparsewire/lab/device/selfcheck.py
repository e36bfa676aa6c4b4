"""`sparsewire selfcheck`: whether this library does on a device what it does on the host, and how fast.

Laws of a training, parity of every kernel, and the kernel table. No GPU has run this library yet: what the command
prints at the end is worth a report.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping
from typing import Any

import torch

from sparsewire import __version__
from sparsewire.kernels import device as kernels

from .. import measure
from ..tables import publish
from . import bench, laws, parity

REPORT = "open an issue with this output (or the file of --json), whether it passed or not"


def main(args: argparse.Namespace) -> int:
    device = bench.find_device(args.device)
    result = run(device, args.size, args.quick)
    publish(show(result), result, args.json)
    return 0 if result["passed"] else 1


def run(device: torch.device, size: int, quick: bool) -> dict[str, Any]:
    """Facts, laws, parity and, unless it shall be quick, the kernel table."""
    checks = {"parity": parity.check(device), "laws": laws.check(device)}
    failed = [f"{part}: {name}: {wrong}" for part, rows in checks.items() for name, wrong in rows if wrong]
    return {
        "facts": facts(device),
        "checks": {part: [{"name": name, "wrong": wrong} for name, wrong in rows] for part, rows in checks.items()},
        "failed": failed,
        "passed": not failed,
        "bench": None if quick else bench.run(device, size, 0.01, 5),
    }


def facts(device: torch.device) -> dict[str, Any]:
    """What a report has to say."""
    return {
        "sparsewire": __version__,
        "device": str(device),
        "name": bench.device_name(device),
        "kernels": kernels.of(torch.zeros(1, device=device)).NAME,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": measure.version_of("triton"),
        "system": platform.platform(),
    }


def show(result: Mapping[str, Any]) -> str:
    lines = [f"{name}: {value}" for name, value in result["facts"].items() if value is not None]
    for part, rows in result["checks"].items():
        good = sum(row["wrong"] is None for row in rows)
        lines.append(f"{part}: {good} of {len(rows)} hold")
    parts = ["\n".join(lines), *(f"FAILED {line}" for line in result["failed"])]
    if result["bench"] is not None:
        parts.append(bench.show(result["bench"]))
    verdict = "passed: the same bits as on the host" if result["passed"] else "FAILED"
    forced = result["facts"]["device"] == "cpu"
    where = "the forced path on CPU tensors, which says nothing about a GPU" if forced else REPORT
    return "\n\n".join([*parts, f"{verdict} ({where})"])
