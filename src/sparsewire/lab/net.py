"""`sparsewire lab net`: starts a command once per rank, each node in a network namespace on links of a given rate."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ..errors import InputError
from .arguments import UNLIMITED
from .commands import Commands
from .lab_arguments import Change
from .launch import Place
from .network import Network, obstacle, rates_of
from .stopping import stoppable


def main(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InputError("no command: sparsewire lab net --ranks 4 --rate 100mbit -- python train.py")
    nodes, rates = count_nodes(args.ranks, args.ranks_per_node), args.rates or args.rate
    per_node = args.ranks_per_node
    with (
        stoppable(),
        places_for(nodes, rates, per_node, bool(args.change)) as places,
        Commands(command, places, per_node) as ranks,
    ):
        return ranks.run(Timeline(args.change, places).tick)


def count_nodes(ranks: int, per_node: int) -> int:
    if ranks % per_node:
        raise InputError(f"{ranks} ranks do not fill nodes of {per_node}: make --ranks a multiple of --ranks-per-node")
    return ranks // per_node


@contextmanager
def places_for(
    nodes: int, rate: str | Sequence[str], per_node: int = 1, changes: bool = False
) -> Iterator[Sequence[Place]]:
    """A network; this machine's own loopback where nothing is limited and namespaces cannot be made."""
    check_rates(rates_of(nodes, rate), changes)
    problem = obstacle()
    if problem is None:
        with Network(nodes, rate, per_node) as found:
            yield found
    else:
        print(f"sparsewire lab: {problem}; the ranks meet on 127.0.0.1", file=sys.stderr)
        yield [Place()] * (nodes * per_node)


def check_rates(rates: Iterable[str], changes: bool = False) -> None:
    """Limits can be set here, if there are any."""
    problem = obstacle()
    if problem is not None and (changes or {*rates} != {UNLIMITED}):
        raise InputError(f"{problem}; without limits this runs here: --rate {UNLIMITED}")


class Timeline:
    """Rates that change while the ranks run."""

    def __init__(self, changes: Sequence[Change], places: Sequence[Place]) -> None:
        self._left, self._places, self._start = sorted(changes), places, time.monotonic()

    def tick(self) -> None:
        while self._left and time.monotonic() - self._start >= self._left[0].after:
            change = self._left.pop(0)
            assert isinstance(self._places, Network)
            self._places.set_rate(change.rate)
            print(f"sparsewire lab: after {change.after:g} s: links of {change.rate}", file=sys.stderr)
