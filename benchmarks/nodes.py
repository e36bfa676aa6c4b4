"""Machines with several ranks on slow links, `nodes` beside the same scheme flat: `sudo python benchmarks/nodes.py`.

A network namespace with several ranks stands for a machine: links between namespaces are limited, inside one they are
not. Both arms train the same model in one run, interleaved. Exit status: 1 if the target is missed and --check is
given, 77 if it cannot run here (no root, no `ip` or `tc`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from network import guarded

from sparsewire.lab import measure
from sparsewire.lab.arguments import UNLIMITED, add_json, read_rate
from sparsewire.lab.bench import train as bench_train
from sparsewire.lab.bench.train import MODELS, stages_table, steps_table
from sparsewire.lab.net.network import Network, bits_per_second
from sparsewire.lab.tables import publish

FLAT, NODES = "flat", "nodes"
SCHEME = "topk(10%) | indices=rice | values=qsgd(bits=7) | memory=residual"
TARGET = 2.5  # × the speed of the flat exchange, 2 machines × 4 ranks at 100 Mbit/s, 25M parameters


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=read_rate, default="100mbit", help=f"100mbit, 1gbit or {UNLIMITED}")
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4, help="on each machine")
    parser.add_argument("--model-size", choices=MODELS, default="25M")
    parser.add_argument("--scheme", default=SCHEME)
    parser.add_argument("--steps", type=int, default=3, help="of each arm in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the target is missed")
    add_json(parser)
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> dict[str, Any]:
    flat = {"hook": "sparsewire", "scheme": options.scheme}
    arms = {FLAT: flat, NODES: {**flat, "nodes": "auto"}}
    with Network(options.machines, options.rate, options.ranks) as places:
        sizes, rounds = MODELS[options.model_size], options.rounds
        found = bench_train.run(sizes, arms, places, warmup=2, steps=options.steps, rounds=rounds, limit=1800)
    usual = (options.machines, options.ranks, options.model_size) == (2, 4, "25M")
    target = TARGET if usual and bits_per_second(options.rate) == bits_per_second("100mbit") else None
    faster = found["arms"][NODES]["times_faster"]
    facts = {"rate": options.rate, "machines": options.machines, "scheme": options.scheme}
    return {**facts, **found, "target": target, "met": None if target is None else faster >= target}


def show(result: dict[str, Any]) -> str:
    ranks = result["ranks"] // result["machines"]
    title = (
        f"{measure.machine_line(result['machine'])}\n{result['machines']} machines × {ranks} ranks, links of "
        f"{result['rate']}, {result['parameters']:,} parameters\n{result['scheme']}"
    )
    arms = result["arms"]
    stages = [f"{name}\n{stages_table(row)}" for name, row in arms.items()]
    verdict = f"nodes: {arms[NODES]['times_faster']:.2f} × the speed of the flat exchange"
    if result["met"] is not None:
        verdict += f" (target: {result['target']:.1f}: {'met' if result['met'] else 'MISSED'})"
    return "\n\n".join([title, steps_table(arms), *stages, verdict])


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    status, results = guarded("nodes.py", lambda: [run(options)])
    for result in results:
        publish(show(result), result, options.json)
    return status or int(options.check and any(result["met"] is False for result in results))


if __name__ == "__main__":
    sys.exit(main())
