"""The arguments of `sparsewire advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsewire.lab.arguments import (
    add_json,
    amount,
    bandwidth,
    count,
    latency,
    milliseconds,
    output_file,
    read_rate,
    share,
    whole,
)

from .parsers import add, lab


def add_advise(commands: Any) -> None:
    parser = add(
        commands, "advise", lab("advise.command"),
        "schemes by bytes at equal error on your gradients, or by your step's time",
        "Of gradients, every scheme is measured: its setting is searched until frames that were encoded and decoded "
        "meet the error. Of a step (--model or --parameters), link and codecs are measured and its time is predicted.",
    )  # fmt: skip
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE", help="gradients in .npz or .npy files")
    parser.add_argument(
        "--live", metavar="MODULE:FUNCTION", help="capture them: FUNCTION() returns a model and a training step"
    )
    parser.add_argument("--steps", type=count, help="of --live to capture (default: 1)")
    parser.add_argument("--skip", type=whole, help="steps of --live to leave out before (default: 0)")
    parser.add_argument("--save", type=output_file, metavar="OUT.npz", help="keep what --live captured")
    parser.add_argument(
        "--error", type=share, action="append", help="relative error to compare at, may be repeated (default: 0.5)"
    )
    parser.add_argument("--picture", type=output_file, metavar="OUT.png", help="draw it")
    add_json(parser)
    _add_step(parser.add_argument_group("of a step", "started on its ranks (torchrun), or told --rate and --ranks"))


def _add_step(parser: Any) -> None:
    parser.add_argument(
        "--model", metavar="MODULE:FUNCTION", help="time its step: FUNCTION() returns a model and a training step"
    )
    parser.add_argument("--parameters", type=amount, metavar="25M", help="instead of --model, with --step-ms")
    parser.add_argument("--step-ms", type=milliseconds, metavar="MS", help="of a step without exchange")
    parser.add_argument("--rate", type=read_rate, help="of every rank's link, instead of measuring it: 100mbit, 1gbit")
    parser.add_argument("--ranks", type=count, metavar="P", help="with --rate")
    parser.add_argument("--latency", type=latency, default="50", metavar="US", help="µs a round, with --rate (50)")
    parser.add_argument(
        "--ratio", type=share, action="append", help="share that is sent, may be repeated (default: 1%%)"
    )
    parser.add_argument(
        "--total-steps", type=count, metavar="N", help="of the run: the ratio then goes by coverage, 20/N, unless told"
    )
    parser.add_argument("--device", choices=["cuda"], help="gradients lie on a GPU: its bandwidths are assumed")
    parser.add_argument(
        "--pcie", type=bandwidth, default="25GB/s", metavar="RATE", help="to the host, with --device (%(default)s)"
    )
    parser.add_argument(
        "--memory", type=bandwidth, default="1.5TB/s", metavar="RATE", help="of it, with --device (%(default)s)"
    )
    parser.add_argument("--scheme", action="append", help="one more to predict, may be repeated")
    parser.add_argument("--optimizer", choices=["momentum", "adam"], help="whose accuracy is named (default: both)")
