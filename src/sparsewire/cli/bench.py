"""The arguments of `sparsewire bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsewire.lab.arguments import EXCHANGE_CODECS, add_json, count, latency, output_file, read_rate, share

from .parsers import add, lab


def add_bench(kinds: Any) -> None:
    parser = add(kinds, "kernels", lab("bench.kernels"), "every hot path against one read of the array")
    parser.add_argument("--size", type=count, default=25_000_000, help="elements (default: %(default)s)")
    parser.add_argument("--ratio", type=share, default=0.01, help="share selected (default: %(default)s)")
    parser.add_argument("--repeat", type=count, default=15, help="rounds (default: %(default)s)")
    parser.add_argument("--threads", type=count, default=1, help="of the dense-sized kernels (default: 1)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    add_json(parser)
    parser = add(kinds, "codecs", lab("bench.codecs"), "size, error and speed of every index and value codec")
    parser.add_argument("--size", type=count, default=10_000_000, help="elements (default: %(default)s)")
    parser.add_argument("--ratio", type=share, default=0.01, help="share of each array (default: %(default)s)")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.npz", help="arrays to measure on as well")
    add_json(parser)

    parser = add(kinds, "deepreduce", lab("bench.deepreduce"), "the methods of DeepReduce beside the paper's figures")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.npz", help="gradients (default: one made up)")
    add_json(parser)

    parser = add(kinds, "rates", lab("bench.rates"), "bits per value against error, every value codec and setting")
    parser.add_argument("--ratio", type=share, default=0.01, help="share of each gradient (default: %(default)s)")
    parser.add_argument("--picture", type=output_file, metavar="OUT.png", help="draw them")
    parser.add_argument("--check", action="store_true", help="exit with 1 if entropy is not the smallest somewhere")
    parser.add_argument("files", type=Path, nargs="*", metavar="FILE.npz", help="gradients (default: one made up)")
    add_json(parser)

    parser = add(kinds, "device", lab("device.bench"), "a device's kernels: multiples of one read, and bytes moved")
    parser.add_argument("--device", default="cpu", help="cuda, xpu, …; cpu: the forced path (default)")
    parser.add_argument("--size", type=count, default=10_000_000, help="elements (default: %(default)s)")
    parser.add_argument("--ratio", type=share, default=0.01, help="share selected (default: %(default)s)")
    parser.add_argument("--repeat", type=count, default=5, help="rounds (default: %(default)s)")
    add_json(parser)

    _add_exchange(kinds)


def _add_exchange(kinds: Any) -> None:
    parser = add(
        kinds, "exchange", lab("bench.exchange.command"),
        "bytes and time of every exchange against the number of ranks",
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
