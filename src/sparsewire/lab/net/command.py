"""`sparsewire lab net`: starts a command once per rank, each node in a network namespace on links of a given rate."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sparsewire.errors import InputError, SparsewireError

from ..arguments import UNLIMITED, Change
from .commands import Commands
from .network import Network, obstacle, rates_of
from .ranks import Endpoint
from .stopping import stoppable


def main(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InputError("no command: sparsewire lab net --ranks 4 --rate 100mbit -- python train.py")
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]} is not found, or not a program that you may run")
    nodes, rates = count_nodes(args.ranks, args.ranks_per_node), args.rates or args.rate
    per_node = args.ranks_per_node
    with (
        stoppable(),
        endpoints_for(nodes, rates, per_node, bool(args.change)) as endpoints,
        Commands(command, endpoints, per_node) as ranks,
    ):
        return ranks.run(Timeline(args.change, endpoints).tick)


def count_nodes(ranks: int, per_node: int) -> int:
    if ranks % per_node:
        raise InputError(f"{ranks} ranks do not fill nodes of {per_node}: make --ranks a multiple of --ranks-per-node")
    return ranks // per_node


@contextmanager
def endpoints_for(
    nodes: int, rate: str | Sequence[str], per_node: int = 1, changes: bool = False
) -> Iterator[Sequence[Endpoint]]:
    """A network; this machine's own loopback where nothing is limited and namespaces cannot be made."""
    rates = rates_of(nodes, rate)
    outcome = _network(nodes, rates, per_node)
    if isinstance(outcome, Network):
        with outcome:
            yield outcome
    else:
        _refuse_limits(outcome, rates, changes)
        print(f"sparsewire lab: {outcome}; the ranks meet on 127.0.0.1", file=sys.stderr)
        yield [Endpoint()] * (nodes * per_node)


def _network(nodes: int, rates: Sequence[str], per_node: int) -> Network | str:
    """Or the reason why there is none, which may show only in making it, as where a container forbids mounts."""
    try:
        return obstacle() or Network(nodes, rates, per_node)
    except SparsewireError as error:
        return str(error)


def check_rates(rates: Iterable[str], changes: bool = False) -> None:
    """Limits can be set here, if there are any."""
    if problem := obstacle():
        _refuse_limits(problem, rates, changes)


def _refuse_limits(problem: str, rates: Iterable[str], changes: bool) -> None:
    if changes or {*rates} != {UNLIMITED}:
        raise InputError(f"{problem}; without limits this runs here: --rate {UNLIMITED}")


class Timeline:
    """Rates that change while the ranks run."""

    def __init__(self, changes: Sequence[Change], endpoints: Sequence[Endpoint]) -> None:
        self._left, self._endpoints, self._start = sorted(changes), endpoints, time.monotonic()

    def tick(self) -> None:
        while self._left and time.monotonic() - self._start >= self._left[0].after:
            change = self._left.pop(0)
            assert isinstance(self._endpoints, Network)
            self._endpoints.set_rate(change.rate)
            print(f"sparsewire lab: after {change.after:g} s: links of {change.rate}", file=sys.stderr)
