"""Results as `sparsewire lab train` writes them, made up: what a training would have come to on such links."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from sparsewire.lab.results import key_of

MACHINE = {
    "cpu": "made up", "cores": 2, "load": 0.5, "python": "3.11", "numpy": "2", "torch": "2", "kernels": "native",
    "isa": "avx2", "threads": 1,
}  # fmt: skip
METHODS = {
    "ddp": 1.0,
    "fp16": 2.0,
    "powersgd; rank=4": 60.0,
    "topk(1%) | values=<&>": 100.0,
    "local:sbc(level=2)": 3000.0,
}


def record(workload: str, method: str, rate: str, ranks: int = 4, seed: int = 1, **more: Any) -> dict[str, Any]:
    tested, fewer = workload != "synthetic-25m", METHODS[method]
    count, parameters = (120, 85_002) if tested else (8, 25_076_712)
    step = 0.4 + 8 * parameters / fewer / {"100mbit": 1e7, "1gbit": 1e8}.get(rate, 1e9)
    sent = round(6 * parameters / fewer * (ranks / 4 if fewer == 100 else 1))
    final = 0.97 - 0.002 * math.log10(fewer) - 0.001 * seed
    cell = {
        "workload": workload, "method": method, "rate": rate, "seed": seed, "ranks": ranks, "ranks_per_node": 1,
        "steps": count, "warmup": 2, "batch": 8, "tests": 3, "learning_rate": 0.1, "data": ".",
    }  # fmt: skip
    found = {
        "key": key_of(cell), "cell": cell, "name": method.partition(";")[0],
        "command": f"sparsewire lab train --method {method}",
        "started": "2026-01-01T00:00:00+00:00", "sparsewire": "0", "machine": MACHINE, "parameters": parameters,
        "score": final if tested else None, "score_kind": "accuracy" if tested else None, "step_ms": 1e3 * step,
        "bytes_per_step": sent, "sent": [count * sent] * ranks, "received": [count * sent] * ranks,
        "parts_ms": {"forward": 100.0, "backward": 1e3 * step - 150, "update": 50.0},
        "stages_ms": {"select": 60.0, "encode": 20.0, "exchange": 400 * step, "decode": 9.0} if fewer == 100 else {},
        "history": [[30 * n, 30 * n * step, final * n / 4] for n in (1, 2, 3)] if tested else [], "link": {},
        "step_seconds": [step] * count, "loss": [2.3 * math.exp(-n / 30) + 0.05 for n in range(count)],
        "sent_by_step": [sent] * count, "wall_seconds": 1.0,
    }  # fmt: skip
    return {**found, **more}


def with_settings(found: dict[str, Any], **settings: Any) -> dict[str, Any]:
    cell = {**found["cell"], **settings}
    return {**found, "cell": cell, "key": key_of(cell)}


def validated(found: dict[str, Any], last: float) -> dict[str, Any]:
    """With the validation score at the last step, as it is recorded now."""
    steps = found["step_seconds"]
    return {**found, "history": [*found["history"], [len(steps), sum(steps), last]]}


def diverged(workload: str, method: str, rate: str, seed: int = 1) -> dict[str, Any]:
    """After half of its steps; JSON has null for NaN."""
    found = record(workload, method, rate, seed=seed, score=None, score_kind="loss")
    half = len(found["loss"]) // 2
    history = [[step, seconds, 2.0 if step < half else None] for step, seconds, _ in found["history"]]
    return {**found, "loss": [*found["loss"][:half], *[None] * half], "history": history}


def failed(workload: str, method: str, rate: str) -> dict[str, Any]:
    whole = record(workload, method, rate)
    kept = ("key", "cell", "name", "command", "started", "sparsewire", "machine")
    return {**{name: whole[name] for name in kept}, "error": "rank 1 failed: <no> luck"}


def rates() -> dict[str, Any]:
    points = [
        {"curve": curve, "codec": f"{curve}({bits})", "bits": bits + extra, "error": 2.0**-bits}
        for curve, extra in (("entropy", 0.0), ("qsgd", 0.6))
        for bits in range(1, 9)
    ]
    return {"machine": MACHINE, "ratio": 0.01, "inputs": [{"input": "made", "count": 1000, "points": points}]}


def all_records() -> list[dict[str, Any]]:
    found = [record("synthetic-25m", method, rate) for rate in ("100mbit", "1gbit") for method in METHODS]
    found += [record("synthetic-25m", method, "1gbit", ranks) for ranks in (2, 8) for method in list(METHODS)[:4]]
    found += [record("mlp-digits", method, "100mbit", seed=seed) for seed in (1, 2) for method in METHODS]
    return [*found, failed("mlp-digits", "fp16", "1gbit")]


def save(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path
