"""`sparsewire bench exchange`: bytes, decode time and step time of every exchange against the number of ranks.

Bytes are counted on in-process ranks by the rules of cost/volume.py; times are those of processes over gloo, on links
that are not limited and, as root, on slower ones. Beside each measurement stands what cost/model.py says, which then
goes on to 10,000 ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from sparsewire.codecs.registry import codecs
from sparsewire.codecs.scheme import Scheme
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.lab import measure
from sparsewire.lab.arguments import UNLIMITED
from sparsewire.lab.measure import Advance, Run
from sparsewire.lab.net.launch import launch_ranks
from sparsewire.lab.net.network import Network, bits_per_second, burst, obstacle
from sparsewire.lab.net.ranks import Endpoint
from sparsewire.lab.net.stopping import stoppable
from sparsewire.lab.tables import publish
from sparsewire.planning.cost.coded import Coded, Speeds
from sparsewire.planning.cost.model import IDENTICAL, Cost, Load, NetworkSpeed, predict
from sparsewire.planning.cost.volume import Tally, Volume

from . import tables as exchange_tables
from .steps import DENSE, SUPPORTS, Workload, run_step

# An exchange with several variants has a row for each; one that is not named here has a row with its default settings.
VARIANTS: dict[str, Sequence[str]] = {
    "reduce_scatter": ("reduce_scatter(route=direct)", "reduce_scatter(route=log)"),
    "shared": ("shared(support=pool)", "shared(support=leader)", "shared(support=mask)"),
}
RATES = ("1gbit", "100mbit")
FURTHER = (2, 4, 8, 16, 32, 100, 320, 1000, 3200, 10_000)
ROUNDS = 5
LIMIT = 900.0  # seconds for all processes of a link
Case = tuple[str, str]


@dataclass(frozen=True)
class Bench:
    """A workload, the cases (an exchange, and how supports lie) measured on it, and the cost model's inputs."""

    load: Workload
    cases: Sequence[Case]
    coded: Coded
    speeds: Speeds
    local: Mapping[str, float]

    def plan(self, case: Case) -> Scheme | None:
        return self.load.plan(case[0])

    def predict(self, case: Case, size: int) -> Cost | None:
        return predict(self.plan(case), Load(self.load.numel, self.load.entries, case[1], self.coded), size)

    def seconds(self, case: Case, cost: Cost, link: NetworkSpeed, sharing: float = 1.0, ring: bool = True) -> float:
        return cost.seconds(link, self.speeds, self.local[case[0]], sharing, ring)


def main(args: argparse.Namespace) -> int:
    measure.need_for_picture(args.picture)
    load = Workload(args.numel, measure.share(args.ratio, args.numel), args.codecs)
    cases = choose_cases(args.exchanges or usual(), load, max([*args.ranks, *args.processes]))
    result = run(load, cases, args)
    publish(exchange_tables.show(result), result, args.json)
    if args.picture is not None:
        _draw(result, args)
    return 0


def usual() -> list[str]:
    """Every registered exchange in its usual settings."""
    return [variant for name in codecs("exchange") for variant in VARIANTS.get(name, (name,))]


def choose_cases(exchanges: Sequence[str], load: Workload, most: int) -> list[Case]:
    """The dense baseline, and every exchange with either kind of supports; mistakes are told here, before any work."""
    for exchange in exchanges:
        load.scheme(exchange)
    if most * load.entries > load.numel:
        few = f"{most} disjoint supports of {load.entries:,} entries do not fit in {load.numel:,}"
        raise InputError(f"{few}: give a smaller --ratio or fewer ranks")
    return [(DENSE, IDENTICAL), *((exchange, supports) for exchange in exchanges for supports in SUPPORTS)]


def run(load: Workload, cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Any]:
    """Machine, settings, what was counted and timed, and what the model says of both and of more ranks."""
    links, reasons = choose_links(args.links, args.processes)
    alone = {exchange: _alone(load, exchange) for exchange, _ in cases}
    total = ROUNDS * len(alone) + len(cases) * (len(args.ranks) + len(links) * len(args.processes))
    with measure.progress(total) as advance:
        coded, local = Coded(load.scheme("allgather")), measure.interleaved(alone, ROUNDS, advance)
        bench = Bench(load, cases, coded, coded.speeds(load.entries, load.numel), local)
        counted = [count(bench, case, size, advance) for case in cases for size in args.ranks]
        timed = [row for rate in links for row in time_link(bench, rate, args.processes, args.steps, advance)]
    rates = [args.bandwidth] if args.bandwidth else RATES
    ahead = [
        row for rate in rates for row in look_ahead(bench, NetworkSpeed(args.latency, 8 / bits_per_second(rate)), rate)
    ]
    facts = {**asdict(load), "speeds": asdict(bench.speeds), "local": local, "not_timed": reasons}
    return {"machine": measure.machine(), **facts, "bytes": counted, "times": timed, "ahead": ahead}


def _alone(load: Workload, exchange: str) -> Run:
    """A step of one rank: what the model calls local."""
    x, plan = load.gradient(IDENTICAL, 0, 1), load.plan(exchange)
    return lambda: run_ranks(1, lambda comm: run_step(x, plan, comm))


# --- bytes -------------------------------------------------------------------------------------------------------


def count(bench: Bench, case: Case, size: int, advance: Advance) -> dict[str, Any]:
    """Bytes in and out of the busiest rank, counted and as the model predicts them."""
    advance(f"{size} ranks, {', '.join(case)}")
    plan = bench.plan(case)

    def one(comm: Communicator) -> Tally:
        tally = Tally(comm)
        run_step(bench.load.gradient(case[1], comm.rank, size), plan, tally)
        return tally

    tallies = run_ranks(size, one, timeout=LIMIT)
    busiest = max(tallies, key=lambda tally: tally.total.both)
    kinds = {kind: asdict(moved) for kind, moved in busiest.kinds.items()}
    mean = sum(tally.total.both for tally in tallies) / size
    cost = bench.predict(case, size)
    row = {**_facts(case, size), **_moved(busiest.total), "mean": mean, "collectives": kinds}
    return {**row, "model": cost and _moved(cost.volume)}


def _facts(case: Case, size: int) -> dict[str, Any]:
    return {"exchange": case[0], "supports": case[1], "ranks": size}


def _moved(volume: Volume) -> dict[str, float]:
    return {**asdict(volume), "both": volume.both}


# --- times -------------------------------------------------------------------------------------------------------


def choose_links(rates: Sequence[str] | None, processes: Sequence[int]) -> tuple[list[str], dict[str, str]]:
    """The links that can be timed here, and why the others cannot."""
    wanted = list(rates or (UNLIMITED, *RATES)) if processes else []
    if not measure.has("torch"):
        return [], dict.fromkeys(wanted, "torch is not installed")
    problem = obstacle()
    if problem is None:
        return wanted, {}
    plain = [rate for rate in wanted if rate == UNLIMITED]
    return plain, {rate: problem for rate in wanted if rate != UNLIMITED}


def time_link(
    bench: Bench, rate: str, processes: Sequence[int], steps: int, advance: Advance
) -> Iterator[dict[str, Any]]:
    """A row per number of processes and case."""
    order = {"load": asdict(bench.load), "cases": bench.cases, "processes": processes, "steps": steps}
    order["burst"] = burst(rate)
    job = "sparsewire.lab.bench.exchange.job:time_exchanges"
    with _endpoints(max(processes), rate) as endpoints:
        results = launch_ranks(job, order, endpoints, lambda event: advance(f"{rate}, {event['name']}"), limit=LIMIT)
    for size in processes:
        groups = [group for ranks in results for group in ranks if group["processes"] == size]
        latency, byte = (max(group[key] for group in groups) for key in ("latency", "byte"))
        link = NetworkSpeed(latency, byte, burst(rate))
        for case, *rows in zip(bench.cases, *(group["rows"] for group in groups), strict=True):
            row = {"link": rate, **asdict(link), **_facts(case, size), **_slowest(rows)}
            yield {**row, "model": _expected(bench, case, link, size)}


@contextmanager
def _endpoints(count: int, rate: str) -> Iterator[Sequence[Endpoint]]:
    if rate == UNLIMITED:
        yield [Endpoint()] * count
        return
    with stoppable(), Network(count, rate) as endpoints:
        yield endpoints


def _slowest(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All ranks wait for the slowest; the least over the steps is the step that other programs disturbed least."""
    slowest = {}
    for key in ("seconds", "decode"):
        slowest[key] = min(max(step) for step in zip(*(row[key] for row in rows), strict=True))
    return {**slowest, "sent": None if rows[0]["sent"] is None else max(row["sent"] for row in rows)}


def _expected(bench: Bench, case: Case, link: NetworkSpeed, size: int) -> dict[str, float] | None:
    cost = bench.predict(case, size)
    if cost is None:
        return None
    sharing = max(1.0, size / (os.cpu_count() or 1))
    seconds, decode = bench.seconds(case, cost, link, sharing), cost.decode_seconds(bench.speeds, sharing)
    return {"seconds": seconds, "decode": decode, "sent": cost.volume.sent}


# --- more ranks --------------------------------------------------------------------------------------------------


def look_ahead(bench: Bench, link: NetworkSpeed, rate: str) -> Iterator[dict[str, Any]]:
    """The model's bytes and seconds with a core for every rank."""
    for case in bench.cases:
        for size in FURTHER:
            cost = bench.predict(case, size)
            if cost is not None:
                ring, fewest = (bench.seconds(case, cost, link, ring=ring) for ring in (True, False))
                row = {"link": rate, **asdict(link), **_facts(case, size), **_moved(cost.volume)}
                yield {**row, "seconds": ring, "seconds_fewest": fewest}


def _draw(result: dict[str, Any], args: argparse.Namespace) -> None:
    from .picture import draw_exchanges

    draw_exchanges(result, args.picture)
    print(f"\npicture: {args.picture}", file=sys.stderr if args.json == "-" else sys.stdout)
