"""`sparsewire bench device`: each kernel of a device as a multiple of one read of the array, and the bytes it moves.

Times are taken with events on an accelerator, and with the host's clock on CPU tensors, beside the native kernels.
Bytes are counted, of torch's operations and of Triton's kernels under its interpreter, which needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from sparsewire.errors import InputError
from sparsewire.kernels import device as kernels

from .. import measure
from ..tables import number, publish, table
from .cases import cases
from .traffic import Bytes, counted

COUNTED = 1 << 18  # elements of an array whose bytes are counted: of more, multiples are hardly smaller
READ = "one read"
COLUMNS = ["kernel", "ms", "× one read", "native ms", "torch moves", "Triton moves", "at most", "met"]


def main(args: argparse.Namespace) -> int:
    result = run(find_device(args.device), args.size, args.ratio, args.repeat)
    publish(show(result), result, args.json)
    return 0


def find_device(name: str) -> torch.device:
    """The device of that name, if it is there."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"--device {name}: {str(error).splitlines()[0]}; write --device cpu for the forced path"
        ) from None
    return device


def run(device: torch.device, size: int, ratio: float, repeat: int) -> dict[str, Any]:
    """Machine, settings, and a row for each kernel."""
    k = measure.share(ratio, size)
    used = kernels.of(torch.zeros(1, device=device))
    times = timed(used, size, k, device, repeat)
    native = native_times(size, k, repeat) if device.type == "cpu" else {}
    moved = {"torch": moves(ratio, "torch_ops", COUNTED), "triton": triton_moves(ratio, COUNTED)}
    rows = [_row(case.name, case.target, times, native, moved) for case in cases(used, 64, 4, device, torch.float32)]
    facts = {"device": str(device), "name": device_name(device), "kernels": used.NAME, "triton": measure.has("triton")}
    return {
        "machine": measure.machine(),
        **facts,
        "size": size,
        "ratio": ratio,
        "k": k,
        "read_ms": 1e3 * times[READ],
        "rows": rows,
    }


def _row(
    name: str, target: float | None, times: Mapping[str, float], native: Mapping[str, float],
    moved: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:  # fmt: skip
    seconds, most = times[name], moved["triton"].get(name) or moved["torch"].get(name)
    return {
        "name": name,
        "ms": 1e3 * seconds,
        "times_read": seconds / times[READ],
        "native_ms": 1e3 * native[name] if name in native else None,
        "moves_torch": moved["torch"].get(name),
        "moves_triton": moved["triton"].get(name),
        "target": target,
        "met": None if target is None or most is None else most <= target,
    }


def device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "CPU tensors, forced"
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return str(name(device)) if name else device.type


# --- times -------------------------------------------------------------------------------------------------------


def timed(used: kernels.DenseKernels, size: int, k: int, device: torch.device, repeat: int) -> dict[str, float]:
    """Seconds of each kernel, the least of so many rounds; and of one read of the gradient."""
    x = torch.randn(size, device=device)
    runs: dict[str, Callable[[], object]] = {READ: x.sum}
    runs |= {case.name: case.run for case in cases(used, size, k, device, torch.float32)}
    return {name: min(_seconds(run, device) for _ in range(repeat)) for name, run in runs.items()}


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    engine: Any = torch.get_device_module(device)
    start, end = (engine.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def native_times(size: int, k: int, repeat: int) -> dict[str, float]:
    """The same of the host's kernels on arrays; those that they do not have are left out."""
    host, made = kernels.load("host"), {}
    x, residual = measure.noise(size), measure.noise(size, 2)
    out, entries = np.empty_like(x), [host.topk(np.roll(x, at), k) for at in range(4)]
    runs: dict[str, Callable[[], object]] = {
        "topk of gradient": lambda: host.topk(x, k),
        "pick: topk of gradient + residual": lambda: host.topk_sum(residual, x, k),
        "keep": lambda: host.compensate(residual, x, *entries[0]),
        f"accumulate {len(entries)} ranks": lambda: host.accumulate(out, entries, 0.25),
        "all_finite": lambda: host.all_finite(x),
    }
    for name, run in runs.items():
        made[name] = min(_seconds(run, torch.device("cpu")) for _ in range(repeat))
    return made


# --- bytes -------------------------------------------------------------------------------------------------------


def moves(ratio: float, module: str, size: int) -> dict[str, float]:
    """How many times the least bytes each kernel moves."""
    found: dict[str, float] = {}
    k, cpu = measure.share(ratio, size), torch.device("cpu")
    for case in cases(kernels.load(module), size, k, cpu, torch.float32):
        with counted() as traffic:
            case.run()
        found[case.name] = _total(traffic) / case.least
    return found


def _total(traffic: Bytes) -> int:
    return sum(asdict(traffic).values())


def triton_moves(ratio: float, size: int) -> dict[str, float]:
    """The same of Triton's kernels, run by its interpreter in a process of its own; none without Triton."""
    if not measure.has("triton"):
        return {}
    code = f"import json; from {__name__} import moves; print(json.dumps(moves({ratio!r}, 'triton_ops', {size})))"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise InputError(f"Triton's interpreter failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --- the text ----------------------------------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> str:
    rows = [
        [row["name"], number(row["ms"], 3), number(row["times_read"]), number(row["native_ms"], 3),
         number(row["moves_torch"]), number(row["moves_triton"]), number(row["target"]),
         {True: "yes", False: "no", None: ""}[row["met"]]]
        for row in result["rows"]
    ]  # fmt: skip
    head = (
        f"{measure.machine_line(result['machine'])}\n{result['name']} ({result['device']}), {result['kernels']} kernels"
        f"; {result['size']:,} float32 elements, k = {result['k']:,}; one read takes {result['read_ms']:.3f} ms"
    )
    foot = (
        "moves: bytes read and written, as a multiple of the least that a kernel has to move; torch's operations by "
        "their arguments and results, Triton's kernels by what they load and store in its interpreter"
    )
    return "\n\n".join([head, table(COLUMNS, rows), foot])
