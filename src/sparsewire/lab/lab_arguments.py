"""Command-line arguments of `sparsewire lab`; its modules are imported only when they run."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from .arguments import UNLIMITED, add, count, lab, read_rate


class Change(NamedTuple):
    """A new rate, so many seconds after the start."""

    after: float
    rate: str


def add_lab(kinds: Any) -> None:
    _add_net(kinds)


def _add_net(kinds: Any) -> None:
    parser = add(
        kinds, "net", lab("net"), "start a command per rank, on links of a given rate between them",
        "Each rank, or node of several, is in a network namespace of its own, limited both ways (needs root). RANK, "
        "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME are set. When a "
        "rank fails the others are ended; the exit status is that of the first that failed.",
    )  # fmt: skip
    parser.add_argument("--ranks", type=count, default=2, metavar="N", help="default: %(default)s")
    add_ranks_per_node(parser)
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--rate", type=read_rate, default=UNLIMITED, help="100mbit, 1gbit or unlimited (the default)")
    rates.add_argument("--rates", type=read_rate, nargs="+", metavar="RATE", help="one for each node")
    parser.add_argument(
        "--change", type=_change, action="append", default=[], metavar="TIME:RATE",
        help="30s:100mbit: another rate for all links, so long after the start; may be repeated",
    )  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="of every rank")


def add_ranks_per_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks-per-node", type=count, default=1, metavar="K", help="that share a link (default: 1)")


def _change(word: str) -> Change:
    after, _, rate = word.partition(":")
    try:
        return Change(float(after.removesuffix("s")), read_rate(rate))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word!r} is not a change of rate: 30s:100mbit") from None
