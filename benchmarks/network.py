"""Training steps of a 25M-parameter model on slow links: `sudo python benchmarks/network.py --rate 100mbit`.

Creates a network namespace per rank, a bridge between them and a `tbf` limit on both ends of every link, times plain
DDP and sparsewire in one run, and removes the namespaces; nothing outside them is changed. Exit status: 1 if a target
is missed and --check is given, 77 if it cannot run here (no root, no `ip` or `tc`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparsewire.errors import SparsewireError
from sparsewire.lab import bench_train, measure
from sparsewire.lab.arguments import add_json
from sparsewire.lab.bench_train import COMPRESSED, FP16, MODELS, PLAIN, POWERSGD
from sparsewire.lab.launch import Place
from sparsewire.lab.tables import publish

CANNOT = 77
SUBNET = "10.231.0"
UNLIMITED = "unlimited"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
SLOW = 1e9  # bit/s: on slower links a plain step takes seconds, so fewer are run
TARGETS = {"100mbit": 18.0, UNLIMITED: 1 / 1.3}  # speed relative to plain DDP


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=read_rate, action="append", help="100mbit, 1gbit, unlimited; may be repeated")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--model-size", choices=MODELS, default="25M")
    parser.add_argument("--scheme", default=bench_train.SCHEME)
    parser.add_argument("--peers", action="store_true", help="torch's fp16 hook and PowerSGD rank 4 as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json(parser)
    return parser.parse_args(argv)


def read_rate(word: str) -> str:
    if word != UNLIMITED and (word[-4:] not in UNITS or not word[:-4].isdecimal() or int(word[:-4]) < 1):
        raise argparse.ArgumentTypeError(f"{word!r} is not a rate: 100mbit, 1gbit or {UNLIMITED}")
    return word


def bits_per_second(rate: str) -> float:
    return float("inf") if rate == UNLIMITED else int(rate[:-4]) * UNITS[rate[-4:]]


# --- the network -------------------------------------------------------------------------------------------------


def obstacle() -> str | None:
    """The reason why this cannot run here, if there is one."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found: install iproute2" if missing else None


@contextmanager
def network(ranks: int, rate: str) -> Iterator[list[Place]]:
    """A namespace with an `eth0` for each rank, connected by a bridge in a namespace of its own.

    Deleting a namespace deletes everything in it, so no other clean-up is needed.
    """
    hub = f"sparsewire-{os.getpid()}-hub"
    names = [f"sparsewire-{os.getpid()}-{rank}" for rank in range(ranks)]
    try:
        _command("ip", "netns", "add", hub)
        _in(hub, "ip", "link", "add", "bridge", "type", "bridge")
        _in(hub, "ip", "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            _connect(hub, name, rank, rate)
        yield [Place(("ip", "netns", "exec", name), "eth0") for name in names]
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def _connect(hub: str, name: str, rank: int, rate: str) -> None:
    port = f"port{rank}"
    _command("ip", "netns", "add", name)
    _in(hub, "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    _in(hub, "ip", "link", "set", port, "master", "bridge", "up")
    _in(name, "ip", "address", "add", f"{SUBNET}.{rank + 1}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _in(name, "ip", "link", "set", device, "up")
    if rate != UNLIMITED:
        _limit(hub, port, rate)
        _limit(name, "eth0", rate)


def _limit(name: str, device: str, rate: str) -> None:
    """A token bucket of 2 ms at the rate, and large enough for one offloaded packet; bursts are not delayed."""
    burst = max(65_536, int(bits_per_second(rate) / 8 * 0.002))
    limit = ["rate", rate, "burst", f"{burst}b", "latency", "50ms"]
    _in(name, "tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)


def _in(name: str, *words: str) -> None:
    _command("ip", "netns", "exec", name, *words)


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SparsewireError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


# --- the runs ----------------------------------------------------------------------------------------------------


def run(rate: str, options: argparse.Namespace) -> dict[str, Any]:
    slow = bits_per_second(rate) < SLOW
    # PowerSGD sends its first two steps dense; the others' first step comes before DDP rebuilds its buckets.
    warmup = {PLAIN: 1, COMPRESSED: 2, FP16: 1, POWERSGD: 3}
    steps = {PLAIN: 2, COMPRESSED: 6, FP16: 2, POWERSGD: 4} if slow else dict.fromkeys(warmup, 4)
    arms = bench_train.choose_arms(options.scheme, options.peers)
    with network(options.ranks, rate) as places:
        sizes = MODELS[options.model_size]
        found = bench_train.run(sizes, arms, places, warmup, steps, rounds=1 if slow else 3, limit=1800)
    faster, target = (
        found["arms"][COMPRESSED]["times_faster"],
        TARGETS.get(rate) if options.model_size == "25M" else None,
    )
    met = None if target is None else faster >= target
    return {"rate": rate, "scheme": options.scheme, **found, "target": target, "met": met}


def show(result: dict[str, Any]) -> str:
    met = {True: "met", False: "MISSED", None: ""}[result["met"]]
    goal = "" if result["target"] is None else f"\ntarget: {result['target']:.2f} × plain DDP's speed: {met}"
    return f"links of {result['rate']}\n{bench_train.show(result)}{goal}\n"


def guarded(script: str, work: Callable[[], list[dict[str, Any]]]) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, results); an error or an obstacle is said, and the namespaces are removed whatever happens."""
    problem = obstacle() or (None if measure.has("torch") else "torch is not installed")
    if problem:
        print(f"{script}: {problem}", file=sys.stderr)
        return CANNOT, []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` removes the namespaces
    try:
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
