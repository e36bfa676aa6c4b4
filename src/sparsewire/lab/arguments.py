"""Command-line arguments of advise, the demo and the benchmarks; their modules are imported only when they run."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAIN_SCHEME = "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual"
EXCHANGE_CODECS = "indices=rice | values=qsgd(bits=7)"
# For SGD with momentum; in a run as short as the demo's, masking the velocity costs more than it gives.
DEMO_SCHEME = "topk(1%) | indices=rice | values=qsgd(bits=7) | memory=dgc(momentum=0.9, mask=false)"
UNLIMITED = "unlimited"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
Command = Callable[[argparse.Namespace], int]


def lab(module: str) -> Command:
    def run(args: argparse.Namespace) -> int:
        status: int = importlib.import_module(f"{__package__}.{module}").main(args)
        return status

    return run


def add(commands: Any, name: str, run: Command, summary: str, more: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=f"{summary}. {more}")
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Any, name: str, summary: str) -> Any:
    parser = commands.add_parser(name, help=summary, description=summary)
    return parser.add_subparsers(title="what", metavar="WHAT", required=True)


def add_json(parser: argparse.ArgumentParser) -> None:
    more = 'write the result as JSON too; "-" or nothing: only that, to stdout'
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", type=_json_file, help=more)


def add_bench(kinds: Any) -> None:
    parser = add(kinds, "kernels", lab("bench_kernels"), "every hot path against one read of the array")
    parser.add_argument("--size", type=count, default=25_000_000, help="elements (default: %(default)s)")
    parser.add_argument("--ratio", type=share, default=0.01, help="share selected (default: %(default)s)")
    parser.add_argument("--repeat", type=count, default=15, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=count, default=1, help="of the dense-sized kernels (default: 1)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json(parser)
    parser = add(kinds, "codecs", lab("bench_codecs"), "size, error and speed of every index and value codec")
    parser.add_argument("--size", type=count, default=10_000_000, help="elements (default: %(default)s)")
    parser.add_argument("--ratio", type=share, default=0.01, help="share of each array (default: %(default)s)")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.npz", help="arrays to measure on as well")
    add_json(parser)

    parser = add(kinds, "deepreduce", lab("bench_deepreduce"), "the methods of DeepReduce beside the paper's figures")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.npz", help="gradients (default: one made up)")
    add_json(parser)

    parser = add(kinds, "rates", lab("bench_rates"), "bits per value against error, every value codec and setting")
    parser.add_argument("--ratio", type=share, default=0.01, help="share of each gradient (default: %(default)s)")
    parser.add_argument("--picture", type=output_file, metavar="OUT.png", help="draw them")
    parser.add_argument("--check", action="store_true", help="exit with 1 if entropy is not the smallest somewhere")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.npz", help="gradients (default: one made up)")
    add_json(parser)

    parser = add(kinds, "train", lab("bench_train"), "training steps of plain DDP and compressed, in turns")
    parser.add_argument("--ranks", type=count, default=2, help="processes on this machine (default: %(default)s)")
    parser.add_argument("--model-size", choices=["25M", "small", "tiny"], default="25M", help="an MLP (default: 25M)")
    parser.add_argument("--steps", type=count, default=20, help="of each kind (default: %(default)s)")
    parser.add_argument("--scheme", default=TRAIN_SCHEME, help='default: "%(default)s"')
    add_json(parser)

    _add_exchange(kinds)


def _add_exchange(kinds: Any) -> None:
    parser = add(
        kinds, "exchange", lab("bench_exchange"), "bytes and time of every exchange against the number of ranks",
        "Bytes are counted on in-process ranks, times are those of processes over gloo, beside what a model says.",
    )  # fmt: skip
    parser.add_argument("--exchanges", nargs="+", metavar="EXCHANGE", help="default: all, in their usual settings")
    parser.add_argument("--numel", type=count, default=1_000_000, help="elements per rank (default: %(default)s)")
    parser.add_argument("--ratio", type=share, default=0.01, help="share that is not zero (default: %(default)s)")
    parser.add_argument("--codecs", default=EXCHANGE_CODECS, help='of the scheme (default: "%(default)s")')
    parser.add_argument("--ranks", type=count, nargs="+", default=[2, 4, 8, 16, 32], metavar="P", help="in-process")
    parser.add_argument(
        "--processes", type=count, nargs="*", default=[2, 4, 8], metavar="P", help="to time (none: no times)"
    )
    parser.add_argument("--links", type=read_rate, nargs="+", metavar="RATE", help="unlimited, 1gbit, 100mbit: to time")
    parser.add_argument("--steps", type=count, default=5, help="timed of each exchange (default: %(default)s)")
    parser.add_argument(
        "--latency", type=latency, default="50", metavar="US", help="µs per round at 10,000 ranks (default: 50)"
    )
    parser.add_argument("--bandwidth", type=read_rate, metavar="RATE", help="its links (default: 1gbit and 100mbit)")
    parser.add_argument("--picture", type=output_file, metavar="OUT.png", help="draw it")
    add_json(parser)


def add_demo(commands: Any) -> None:
    parser = add(commands, "demo", lab("demo"), "two ranks train on digits, plain and compressed, side by side")
    parser.add_argument(
        "-o", "--output", type=output_file, default=Path("out/demo.png"), help="picture (default: %(default)s)"
    )
    parser.add_argument("--steps", type=count, default=250, help="of each training (default: %(default)s)")
    parser.add_argument("--hidden", type=count, default=1024, help="width of the two hidden layers (default: 1024)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scheme", default=DEMO_SCHEME, help='default: "%(default)s"')
    add_json(parser)


def add_advise(commands: Any) -> None:
    parser = add(
        commands, "advise", lab("advise"), "schemes by bytes at equal error on your gradients, or by your step's time",
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
    parser.add_argument("--scheme", action="append", help="one more to predict, may be repeated")
    parser.add_argument("--optimizer", choices=["momentum", "adam"], help="whose accuracy is named (default: both)")


def amount(word: str) -> int:
    """A number of parameters."""
    units = {"k": 1e3, "m": 1e6, "b": 1e9}
    try:
        found = float(word[:-1]) * units[word[-1].lower()] if word[-1:].lower() in units else float(word)
    except ValueError:
        found = 0.0
    if not 1 <= found < 1e15:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of parameters: 25M or 25000000")
    return int(found)


def milliseconds(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e9:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of milliseconds above 0")
    return found


def whole(word: str) -> int:
    return count(word, least=0)


def count(word: str, least: int = 1) -> int:
    if not word.isdecimal() or int(word) < least:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number ≥ {least}")
    return int(word)


def share(word: str) -> float:
    try:
        share = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a share: 0.01 or 1%")
    return share


def read_rate(word: str) -> str:
    if word != UNLIMITED and (word[-4:] not in UNITS or not word[:-4].isdecimal() or int(word[:-4]) < 1):
        raise argparse.ArgumentTypeError(f"{word!r} is not a rate: 100mbit, 1gbit or {UNLIMITED}")
    return word


def latency(word: str) -> float:
    """Seconds, from microseconds."""
    try:
        found = float(word) / 1e6
    except ValueError:
        found = -1.0
    if not 0 <= found < 1e3:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of microseconds")
    return found


def output_file(word: str) -> Path:
    """A file to write; a directory is refused at once, not after the measurement."""
    if os.path.isdir(word):
        raise argparse.ArgumentTypeError(f"{word} is a directory: name a file")
    return Path(word)


def _json_file(word: str) -> str:
    """A file for JSON; refuses an input file that stands after a bare --json."""
    if Path(word).suffix in (".npy", ".npz", ".swf"):
        raise argparse.ArgumentTypeError(f"{word} is no file for JSON: say --json FILE.json, or --json - for stdout")
    if not os.path.isdir(output_file(word).parent):
        raise argparse.ArgumentTypeError(f"{word}: the directory {Path(word).parent} does not exist")
    return word
