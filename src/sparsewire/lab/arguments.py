"""Readers of the words of command lines, and the defaults of options."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

EXCHANGE_CODECS = "indices=rice | values=qsgd(bits=7)"
UNLIMITED = "unlimited"
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmg])(?:bit(?:/s|ps)?|b/s|bps)")
WORKLOAD_NAMES = (
    "mlp-digits", "lenet-mnist", "resnet20-cifar", "lstm-wikitext", "gpt-text", "gpt-text-wide",
    "ncf-movielens", "synthetic-25m", "synthetic-1m", "synthetic-10k",
)  # fmt: skip


class Change(NamedTuple):
    """A new rate, so many seconds after the start."""

    after: float
    rate: str


def add_json(parser: argparse.ArgumentParser) -> None:
    more = 'write the result as JSON too; "-" or nothing: only that, to stdout'
    parser.add_argument("--json", metavar="FILE", nargs="?", const="-", type=_json_file, help=more)


def amount(word: str) -> int:
    """A number of parameters."""
    unit = {"k": 1e3, "m": 1e6, "b": 1e9}.get(word[-1:].lower())
    parameters = _float(word) if unit is None else _float(word[:-1]) * unit
    if not 1 <= parameters < 1e15:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of parameters: 25M or 25000000")
    return int(parameters)


def milliseconds(word: str) -> float:
    if not 0 < _float(word) < 1e9:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of milliseconds above 0")
    return float(word)


def whole(word: str) -> int:
    return count(word, least=0)


def count(word: str, least: int = 1) -> int:
    if not word.isdecimal() or int(word) < least:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number ≥ {least}")
    return int(word)


def share(word: str) -> float:
    share = _float(word[:-1]) / 100 if word.endswith("%") else _float(word)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{word!r} is not a share: 0.01 or 1%")
    return share


def read_rate(word: str) -> str:
    """A rate as `tc` writes it: 1gbps, 1Gbit/s and 1 Gb/s are 1gbit, and 2.5gbit is 2500mbit.

    >>> [read_rate(word) for word in ("100mbit", "1Gbit/s", "2.5gbps", "unlimited")]
    ['100mbit', '1gbit', '2500mbit', 'unlimited']
    """
    if word.lower() == UNLIMITED:
        return UNLIMITED
    found = RATE.fullmatch(word.lower())
    bits = round(float(found[1]) * UNITS[f"{found[2]}bit"], 3) if found else 0.0
    for unit, size in reversed(UNITS.items()):
        if bits >= size and bits % size == 0:
            return f"{bits / size:.0f}{unit}"
    raise argparse.ArgumentTypeError(f"{word!r} is not a rate: 100mbit, 1gbit or {UNLIMITED}, of whole kbit")


def bandwidth(word: str) -> float:
    """Bytes a second.

    >>> [bandwidth(word) for word in ("25GB/s", "1.5TB/s")]
    [25000000000.0, 1500000000000.0]
    """
    number, unit = word[:-4], word[-4:].upper()
    scale = {"MB/S": 1e6, "GB/S": 1e9, "TB/S": 1e12}.get(unit, 0.0)
    found = _float(number) * scale
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r} is not a bandwidth: 25GB/s or 1.5TB/s")
    return found


def read_change(word: str) -> Change:
    after, _, rate = word.partition(":")
    seconds = _float(after.removesuffix("s"))
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{word!r} is not a change of rate: 30s:100mbit")
    return Change(seconds, read_rate(rate))


def latency(word: str) -> float:
    """Seconds, from microseconds."""
    seconds = _float(word) / 1e6
    if not 0 <= seconds < 1e3:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of microseconds")
    return seconds


def _float(word: str) -> float:
    """The number that is written there; NaN, which lies in no range, where there is none."""
    try:
        return float(word)
    except ValueError:
        return math.nan


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
