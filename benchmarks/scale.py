"""Which exchange, and what step, for up to 10,000 ranks, by the cost model: the table of docs/guides/exchanges.md.

    python benchmarks/scale.py

Nothing is measured here. Assumed: 25M parameters in buckets of 6.25M (25 MB), top 1 %, rice and qsgd; a step computes
for 100 ms, its buckets are ready at 40, 60, 80 and 100 ms; a core for every rank and one for its communication thread;
rounds of 500 µs at 100 Mbit/s, 50 µs at 1 Gbit/s, 20 µs at 25 Gbit/s; no switch is a bottleneck, and nobody is late.
Speeds of codecs are those of `sparsewire bench exchange` (docs/measurements/exchanges.md). Supports lie disjoint, the
worst case.
"""

from __future__ import annotations

import sys

from sparsewire import scheme
from sparsewire.lab.tables import number
from sparsewire.planning.cost.coded import Speeds
from sparsewire.planning.cost.model import NetworkSpeed
from sparsewire.planning.cost.step import BucketTiming, Codecs, Compute, dense_step, sparse_step

RANKS = (64, 256, 1000, 4000, 10_000)
LINKS = {"100 Mbit/s": (500e-6, 100e6), "1 Gbit/s": (50e-6, 1e9), "25 Gbit/s": (20e-6, 25e9)}
EXCHANGES = ("allgather", "reduce_scatter(route=direct)", "reduce_scatter(route=log)", "shared(support=pool)", "sketch")
BUCKETS = [BucketTiming(0.02 * place, 6_250_000, 25_000_000) for place in range(4)]
COMPUTE = Compute(0.04, BUCKETS)
NS = 1e-9
SPEEDS = Speeds(2.7 * NS, 2.5 * NS, 18_247 * NS, 49_463 * NS, 248.9 * NS, 23.2 * NS, 1.8 * NS, 2.3 * NS, 50.2 * NS,
                0.8 * NS, 0.1 * NS)  # fmt: skip
CODECS = Codecs(0.25 * NS, 0.35 * NS, 1.0, 0.01, SPEEDS)  # seconds an element to select and encode, and to keep


def steps(ranks: int, link: NetworkSpeed) -> dict[str, float]:
    plans = {name: scheme(f"topk(1%) | indices=rice | values=qsgd(bits=7) | exchange={name}") for name in EXCHANGES}
    found = {name: sparse_step(plan, CODECS, COMPUTE, link, ranks) for name, plan in plans.items()}
    return {"dense": dense_step(COMPUTE, link, ranks), **found}


def line(rate: str, ranks: int) -> str:
    latency, bits = LINKS[rate]
    found = steps(ranks, NetworkSpeed(latency, 8 / bits))
    best = min(found, key=found.__getitem__)
    cells = [f"**{text}**" if name == best else text for name, text in
             ((name, number(1e3 * spent, 0)) for name, spent in found.items())]  # fmt: skip
    return f"| {rate} | {ranks:,} | {' | '.join(cells)} |"


def main() -> int:
    print(f"| links | ranks | dense | {' | '.join(f'`{name}`' for name in EXCHANGES)} |")
    print("|---" * (3 + len(EXCHANGES)) + "|")
    for rate in LINKS:
        for ranks in RANKS:
            print(line(rate, ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
