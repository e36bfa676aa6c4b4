"""`sparsewire bench train`: time of a training step with and without compression, interleaved, and time by stage."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...auto import read_auto
from ...errors import InputError
from ...scheme import scheme
from .. import measure
from ..arguments import TRAIN_SCHEME
from ..net.launch import Place, launch_ranks
from ..tables import number, publish, table

SCHEME = TRAIN_SCHEME
MODELS: dict[str, list[int]] = {"25M": [1024, 4096, 4096, 1000], "small": [64, 1024, 1024, 10], "tiny": [64, 128, 10]}
BATCH = 8
PLAIN, COMPRESSED, FP16, POWERSGD = "plain DDP", "sparsewire", "fp16 hook", "PowerSGD rank 4"
PEERS: dict[str, dict[str, Any]] = {FP16: {"hook": "fp16"}, POWERSGD: {"hook": "powersgd"}}
CODING, SELECT = ("encode", "decode"), "select"
TARGET_CODING = 0.2
BLOCK = 5  # steps of one arm before the next arm runs


def main(args: argparse.Namespace) -> int:
    read_auto(args.scheme) or scheme(args.scheme)  # an error is reported here, before any rank starts
    rounds = max(1, round(args.steps / BLOCK))
    steps = min(args.steps, BLOCK)
    result = run(
        MODELS[args.model_size], choose_arms(args.scheme), [Place()] * args.ranks, warmup=3, steps=steps, rounds=rounds
    )
    result = {"model": args.model_size, "scheme": args.scheme, **result}
    publish(show(result), result, args.json)
    return 0


def choose_arms(plan: str, peers: bool = False) -> dict[str, dict[str, Any]]:
    ours = {PLAIN: {"hook": "none"}, COMPRESSED: {"hook": "sparsewire", "scheme": plan}}
    return {**ours, **(PEERS if peers else {})}


def run(
    sizes: Sequence[int],
    arms: Mapping[str, Mapping[str, Any]],
    places: Sequence[Place],
    warmup: int | Mapping[str, int],
    steps: int | Mapping[str, int],
    rounds: int = 1,
    limit: float = 600.0,
) -> dict[str, Any]:
    """Step times, bytes and stages of every arm, and what they are beside the first arm's; warmup and steps are for all
    arms, or by the arm's name."""
    if not measure.has("torch"):
        raise InputError("this needs torch: pip install torch")
    first, counted = ({name: n if isinstance(n, int) else n[name] for name in arms} for n in (warmup, steps))
    order = {"arms": arms, "sizes": sizes, "batch": BATCH, "warmup": first, "steps": counted, "rounds": rounds}
    total = sum(first.values()) + rounds * sum(counted.values())
    with measure.progress(total) as advance:
        found = launch_ranks(
            "sparsewire.lab.demo.job:time_steps", order, places, lambda event: advance(event["arm"]), limit=limit
        )
    facts = {"ranks": len(places), "batch": BATCH, "parameters": found[0]["parameters"]}
    rows = {name: _row([one["arms"][name] for one in found]) for name in arms}
    return {"machine": measure.machine(), **facts, "arms": {name: _against(row, rows) for name, row in rows.items()}}


def _row(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the steps of the mean over the ranks, which all end a step at the same time."""
    by_step = [statistics.fmean(step) for step in zip(*(report["seconds"] for report in reports), strict=True)]
    names = reports[0]["stages"]
    stages = {name: 1e3 * statistics.fmean(report["stages"].get(name, 0.0) for report in reports) for name in names}
    sent = statistics.fmean(statistics.median(report["bytes"]) for report in reports)
    row = {"step_ms": 1e3 * statistics.median(by_step), "all_ms": [1e3 * step for step in by_step], "bytes": sent}
    told = {name: reports[0][name] for name in ("nodes", "auto")}
    return {**row, "stages_ms": stages, "coding_share": _coding_share(stages), **told}


def _against(row: dict[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    first = next(iter(rows.values()))
    return {
        **row,
        "times_faster": first["step_ms"] / row["step_ms"],
        "times_fewer_bytes": first["bytes"] / row["bytes"],
    }


def _coding_share(stages: Mapping[str, float]) -> float | None:
    """Time of encode and decode relative to select."""
    return sum(stages.get(name, 0.0) for name in CODING) / stages[SELECT] if stages.get(SELECT) else None


# --- the tables --------------------------------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> str:
    title = f"{result['parameters']:,} parameters, {result['ranks']} ranks, batch {result['batch']} each"
    ours = result["arms"][COMPRESSED]
    parts = [f"{measure.machine_line(result['machine'])}\n{title}\n{COMPRESSED}: {result['scheme']}"]
    parts += [steps_table(result["arms"]), stages_table(ours)]
    return "\n\n".join([*parts, _verdict(ours["coding_share"])])


def steps_table(arms: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [[name, number(row["step_ms"], 1), number(row["times_faster"]), f"{row['bytes']:,.0f}",
             number(row["times_fewer_bytes"], 1)] for name, row in arms.items()]  # fmt: skip
    return table(["", "step ms", "× faster", "bytes sent per rank and step", "× fewer"], rows)


def stages_table(row: Mapping[str, Any]) -> str:
    rows = [[name, number(spent, 2), f"{spent / row['step_ms']:.1%}"] for name, spent in row["stages_ms"].items()]
    return table(["stage, on the courier's thread", "ms per step", "of the step"], rows)


def _verdict(share: float | None) -> str:
    if share is None:
        return "encode + decode: not timed"
    return f"encode + decode: {share:.1%} of select (target: < {TARGET_CODING:.0%})"
