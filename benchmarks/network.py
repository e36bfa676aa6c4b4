"""Training steps of a 25M-parameter model on slow links: `sudo python benchmarks/network.py --rate 100mbit`.

Creates a network namespace per rank, a bridge between them and a `tbf` limit on both ends of every link, times plain
DDP and sparsewire in one run, and removes the namespaces; nothing outside them is changed. Exit status: 1 if a target
is missed and --check is given, 77 if it cannot run here (no root, no `ip` or `tc`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sparsewire.errors import SparsewireError
from sparsewire.lab import measure
from sparsewire.lab.arguments import UNLIMITED, add_json, read_rate, share
from sparsewire.lab.bench import train as bench_train
from sparsewire.lab.bench.train import COMPRESSED, FP16, MODELS, PLAIN, POWERSGD
from sparsewire.lab.net.network import Network, bits_per_second, obstacle
from sparsewire.lab.net.stopping import stoppable
from sparsewire.lab.tables import publish

CANNOT = 77
SLOW = 1e9  # bit/s: on slower links a plain step takes seconds, so fewer are run
TARGETS = {"100mbit": 18.0, UNLIMITED: 1 / 1.3}  # speed relative to plain DDP


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=read_rate, action="append", help="100mbit, 1gbit, unlimited; may be repeated")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--model-size", choices=MODELS, default="25M")
    parser.add_argument("--scheme", default=bench_train.SCHEME)
    parser.add_argument("--prune", type=share, metavar="50%%", help="of the weights, in all arms: for pactrain(…)")
    parser.add_argument("--peers", action="store_true", help="torch's fp16 hook and PowerSGD rank 4 as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json(parser)
    return parser.parse_args(argv)


# --- the runs ----------------------------------------------------------------------------------------------------


def run(rate: str, options: argparse.Namespace) -> dict[str, Any]:
    slow = bits_per_second(rate) < SLOW
    # PowerSGD sends its first two steps dense; the others' first step comes before DDP rebuilds its buckets.
    warmup = {PLAIN: 1, COMPRESSED: 2, FP16: 1, POWERSGD: 3}
    steps = {PLAIN: 2, COMPRESSED: 6, FP16: 2, POWERSGD: 4} if slow else dict.fromkeys(warmup, 4)
    chosen = bench_train.choose_arms(options.scheme, options.peers)
    arms = {name: {**settings, "pruned": options.prune} for name, settings in chosen.items()}
    with Network(options.ranks, rate) as places:
        sizes = MODELS[options.model_size]
        found = bench_train.run(sizes, arms, places, warmup, steps, rounds=1 if slow else 3, limit=1800)
    faster, target = (
        found["arms"][COMPRESSED]["times_faster"],
        TARGETS.get(rate) if options.model_size == "25M" else None,
    )
    met = None if target is None else faster >= target
    return {"rate": rate, "scheme": options.scheme, "pruned": options.prune, **found, "target": target, "met": met}


def show(result: dict[str, Any]) -> str:
    met = {True: "met", False: "MISSED", None: ""}[result["met"]]
    goal = "" if result["target"] is None else f"\ntarget: {result['target']:.2f} × plain DDP's speed: {met}"
    pruned = f", {result['pruned']:.0%} of the weights pruned" if result["pruned"] else ""
    return f"links of {result['rate']}{pruned}\n{bench_train.show(result)}{goal}\n"


def guarded(script: str, work: Callable[[], list[dict[str, Any]]]) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, results); an error or an obstacle is said, and the namespaces are removed whatever happens."""
    problem = obstacle() or (None if measure.has("torch") else "torch is not installed")
    if problem:
        print(f"{script}: {problem}", file=sys.stderr)
        return CANNOT, []
    try:
        with stoppable():
            return 0, work()
    except SparsewireError as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 2, []
    except KeyboardInterrupt:
        return 130, []


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    status, results = guarded("network.py", lambda: [run(rate, options) for rate in options.rate or ["100mbit"]])
    if results:
        publish("\n".join(map(show, results)), results, options.json)
    return status or int(options.check and any(result["met"] is False for result in results))


if __name__ == "__main__":
    sys.exit(main())
