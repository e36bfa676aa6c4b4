"""Where a compressed step's time goes, and how far it is from its floor, the step of ranks that exchange nothing.

    sudo python benchmarks/profile_step.py --ranks 4 --rate 1gbit

25M parameters; the arms take turns within one run ("views": DDP's gradient_as_bucket_view=True). Of each arm with a
link: the parts of the step as `link.stats()` gives them (docs/guides/profile.md); how long its collectives took, and
how long each took on the rank that came last, which is what the wire and the engine need; seconds in which threads were
ready and had no core. CPU is that of a rank's whole process.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from interleaved import PARTS, guarded, time_arms

from sparsewire.lab.arguments import UNLIMITED, add_json, count
from sparsewire.lab.net.command import endpoints_for
from sparsewire.lab.tables import number, publish, table
from sparsewire.lab.tasks.workloads import MODELS

ALONE = "compute only"
ARMS: dict[str, dict[str, Any]] = {
    ALONE: {"hook": "alone"},
    "topk(1%), rice, qsgd": {
        "hook": "sparsewire",
        "scheme": "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual",
    },
    "the same, views": {
        "hook": "sparsewire",
        "scheme": "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual",
        "views": True,
    },
    "topk(1%), default": {"hook": "sparsewire", "scheme": "topk(1%)"},
}


def measured(ranks: int, rate: str, rounds: int, steps: int) -> dict[str, Any]:
    with endpoints_for(ranks, rate) as endpoints:
        found = time_arms(MODELS["25M"], ARMS, endpoints, warmup=3, steps=steps, rounds=rounds, limit=800)
    floor = found["arms"][ALONE]["step_ms"]
    for row in found["arms"].values():
        row["of_compute"] = row["step_ms"] / floor
    return {"rate": rate, **found}


def show(result: Mapping[str, Any]) -> str:
    title = f"{result['ranks']} ranks, {result['rate']}, {result['parameters']:,} parameters; ms a step"
    columns = ["", "step", "× compute only", "CPU", *PARTS, "hidden work", "collectives", "by the last", "queued"]
    return f"{title}\n{table(columns, [_cells(name, row) for name, row in result['arms'].items()])}"


def _cells(name: str, row: Mapping[str, Any]) -> list[str]:
    start = [name, number(row["step_ms"], 1), number(row["of_compute"], 2), number(row["cpu_ms"], 1)]
    profile = row["profile_ms"]
    if not profile:
        return [*start, *[""] * 8]
    parts = [number(profile[part], 1) for part in (*PARTS, "hidden work", "collectives", "by the last")]
    return [*start, *parts, f"{profile['compute queued']:.0f} + {profile['communication queued']:.0f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=count, default=4)
    parser.add_argument("--rate", nargs="+", default=["1gbit"], help=f"of the links, or {UNLIMITED}; several in turn")
    parser.add_argument("--rounds", type=count, default=6)
    parser.add_argument("--steps", type=count, default=5, help="of each arm in a round")
    add_json(parser)
    args = parser.parse_args()

    def work() -> list[dict[str, Any]]:
        return [measured(args.ranks, rate, args.rounds, args.steps) for rate in args.rate]

    status, results = guarded("profile_step.py", work)
    if results:
        publish("\n\n".join(map(show, results)), {"results": results}, args.json)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
