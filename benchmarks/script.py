"""What the scripts that train share: arguments, and showing, writing and drawing what came out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsewire.errors import SparsewireError
from sparsewire.lab import measure, results
from sparsewire.lab.arguments import add_json, count, output_file
from sparsewire.lab.tables import publish

Options = argparse.Namespace
Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training."""

    name: str
    rule: str
    seed: int
    rate: float


def add_arguments(parser: argparse.ArgumentParser, tasks: Iterable[str]) -> None:
    names = list(tasks)
    parser.add_argument("--data", type=Path, default=Path(), metavar="FOLDER", help="with mnist.npz and the others")
    parser.add_argument("--tasks", nargs="*", choices=names, default=names[:1], help=f"default: {names[0]}")
    parser.add_argument("--seeds", nargs="*", type=count, default=[11, 12, 13], help="none: only rates are chosen")
    parser.add_argument("--rates", nargs="+", type=float, help="to choose from; one is taken as it is")
    parser.add_argument("--steps", type=count, help="default: the task's")
    parser.add_argument("--add", nargs="+", type=Path, default=[], metavar="FILE.json", help="results to show as well")
    parser.add_argument("--picture", type=output_file, metavar="OUT.png")
    add_json(parser)


def parse_rules(doc: str | None, tasks: Iterable[str], rules: Iterable[str], argv: Sequence[str] | None) -> Options:
    """Arguments of a script that compares rules; its description is the first line of its docstring."""
    parser, names = argparse.ArgumentParser(description=(doc or "").partition("\n")[0]), list(rules)
    add_arguments(parser, tasks)
    parser.add_argument("--rules", nargs="+", choices=names, default=names)
    return parser.parse_args(argv)


def run_script(
    options: argparse.Namespace, run: Callable[[argparse.Namespace], Result], show: Callable[[Result], str],
    draw: Callable[[Result, Path], None],
) -> int:  # fmt: skip
    """Runs, shows, writes and draws; the exit status."""

    def work() -> None:
        result = run(options)
        publish(show(result), result, options.json)
        if options.picture:
            draw(result, options.picture)

    return exit_status(work)


def run_listed(
    options: argparse.Namespace, run: Callable[[argparse.Namespace], None], show: Callable[[list[Result]], str],
    draw: Callable[[list[Result], Path], None] | None = None,
) -> int:  # fmt: skip
    """Runs what `options.output` does not list yet, and shows all that is there; the exit status."""

    def work() -> None:
        measure.need_for_picture(options.picture)
        if options.nice:
            os.nice(19)
        if options.tasks:
            results.prepare(options.output)
            with results.alone(options.output):
                run(options)
        records = [record for path in (options.output, *options.add) for _, record in results.read(path)]
        print(show(records))
        if draw is not None and options.picture:
            draw(records, options.picture)

    return exit_status(work)


def exit_status(work: Callable[[], object]) -> int:
    """0, or 2 after an error of the input, which is said in one line."""
    try:
        work()
    except (SparsewireError, OSError) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return 2
    return 0
