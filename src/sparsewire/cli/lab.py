"""The arguments of `sparsewire lab` and `sparsewire demo`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sparsewire.lab.arguments import (
    UNLIMITED,
    WORKLOAD_NAMES,
    add_json,
    count,
    output_file,
    read_change,
    read_rate,
    whole,
)

from .parsers import add, lab


def add_lab(kinds: Any) -> None:
    _add_net(kinds)
    _add_train(kinds)
    _add_report(kinds)


def _add_net(kinds: Any) -> None:
    parser = add(
        kinds, "net", lab("net.command"), "start a command per rank, on links of a given rate between them",
        "Each rank, or node of several, is in a network namespace of its own, limited both ways (needs root). RANK, "
        "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME are set. When a "
        "rank fails the others are ended; the exit status is that of the first that failed.",
    )  # fmt: skip
    parser.add_argument("--ranks", type=count, default=2, metavar="N", help="default: %(default)s")
    _add_ranks_per_node(parser)
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--rate", type=read_rate, default=UNLIMITED, help="100mbit, 1gbit or unlimited (the default)")
    rates.add_argument("--rates", type=read_rate, nargs="+", metavar="RATE", help="one for each node")
    parser.add_argument(
        "--change", type=read_change, action="append", default=[], metavar="TIME:RATE",
        help="30s:100mbit: another rate for all links, so long after the start; may be repeated",
    )  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="of every rank")


def _add_train(kinds: Any) -> None:
    parser = add(
        kinds, "train", lab("train.command"),
        "train workloads by several methods over such links, a line of results each",
        "Settings are those of FILE, or of the flags, of which lists are combined; flags may be repeated. A cell that "
        "is in the results already is not run again; one that fails is recorded, and the rest goes on. Exit status: 1 "
        "if one failed.",
    )  # fmt: skip
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE.toml", help="instead of flags: docs/guides/lab.md")
    several: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument("--workload", **several, metavar="NAME", help=", ".join(WORKLOAD_NAMES))
    parser.add_argument(
        "--method", **several,
        help='ddp, fp16, bf16, powersgd, post-local-sgd, attach, local-steps, auto, a scheme, "local:SCHEME", '
        '"keras:SCHEME" or "jax:SCHEME"; settings follow after semicolons',
    )  # fmt: skip
    parser.add_argument("--rate", type=read_rate, **several, help="100mbit, 1gbit or unlimited (the default)")
    parser.add_argument("--seed", type=whole, **several, help="default: 1")
    parser.add_argument("--ranks", type=count, **several, metavar="N", help="default: 4")
    _add_ranks_per_node(parser, None)
    parser.add_argument("--steps", type=count, help="default: the workload's, as all of the following")
    parser.add_argument("--warmup", type=whole, metavar="STEPS", help="at the beginning that are not timed")
    parser.add_argument("--batch", type=count, help="of each rank")
    parser.add_argument("--tests", type=whole, metavar="N", help="on the way")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="with the workloads' files (default: this one)")
    parser.add_argument("--limit", type=count, default=3600, metavar="SECONDS", help="for a cell (default: 3600)")
    results = Path("out/lab.jsonl")
    parser.add_argument(
        "-o", "--output", type=output_file, default=results, metavar="RESULTS", help="default: %(default)s"
    )


def _add_report(kinds: Any) -> None:
    parser = add(
        kinds, "report", lab("report.command"), "results as one page, which loads nothing from elsewhere",
        "What the results have nothing for is left out.",
    )  # fmt: skip
    parser.add_argument(
        "results", type=Path, nargs="+", metavar="RESULTS", help="of `lab train`, or JSON of `bench rates`"
    )
    default = Path("out/report.html")
    parser.add_argument(
        "-o", "--output", type=output_file, default=default, metavar="OUT.html", help="default: %(default)s"
    )


def _add_ranks_per_node(parser: argparse.ArgumentParser, default: int | None = 1) -> None:
    parser.add_argument("--ranks-per-node", type=count, default=default, metavar="K", help="that share a link (1)")


def add_selfcheck(commands: Any) -> None:
    parser = add(
        commands, "selfcheck", lab("device.selfcheck"), "whether a device gives the host's bits, and how fast",
        "Laws of a training, parity of every kernel, and the kernel table; exit status 1 if anything differs.",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cuda, xpu, …; cpu: the forced path (default)")
    parser.add_argument("--size", type=count, default=10_000_000, help="elements of the table (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="without the table")
    add_json(parser)


def add_demo(commands: Any) -> None:
    parser = add(
        commands, "demo", lab("demo.command"), "two ranks on a slow link train on digits: plain DDP beside sparsewire",
        "The link is emulated: by network namespaces, which root can make, and any user where the kernel allows user "
        "namespaces; otherwise by a proxy through which the ranks are connected. Takes a minute.",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=output_file, default=Path("out/demo.png"), help="picture (default: %(default)s)"
    )
    parser.add_argument("--rate", type=read_rate, default="100mbit", help="of the link (default: %(default)s)")
    parser.add_argument("--steps", type=count, default=200, help="of each training (default: %(default)s)")
    parser.add_argument("--hidden", type=count, default=640, help="width of the two hidden layers (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scheme", help="instead of the one that is chosen by the optimizer and the steps")
    add_json(parser)
