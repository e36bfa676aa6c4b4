"""Which rule keeps dense training's accuracy at the worst: `benchmarks/accuracy.py --data FOLDER -o FILE.jsonl`.

Ranks are threads of this process and train through `Averager` (see training.py) with the default codecs; parameters of
fewer than 1,024 elements travel dense. The ratio is coverage / steps: a coverage of 20 sends each element 20 times in
all on average. Rules are compared with dense training of the same seed, batches, steps and rate.

gain, gmc, dgc     memories for SGD with momentum
residual           error feedback, for AdamW with β1 = 0
…+model            one threshold for the whole model instead of a ratio for each parameter
…+falling          the ratio falls as 1/t, the same on average

1. For each task, number of ranks and spread of the data dense training's best rate is chosen, at a seed of its own, by
   data that is not reported.
2. Every rule trains at that rate times each of `--factors`. None of them is tuned.

Each training is a line of FILE.jsonl as soon as it has ended. What is there is not trained again, so a run that was
interrupted goes on with the same command. Without `--tasks` nothing is trained: the file is shown.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from accuracy_picture import draw
from accuracy_rules import DENSE, RULES, SPREADS, Cell, train
from accuracy_table import show
from accuracy_tasks import TASKS
from script import run_listed

from sparsewire.lab import measure, results
from sparsewire.lab.arguments import count, output_file
from sparsewire.lab.tasks.scores import HIGHER
from sparsewire.lab.tasks.task import Data

TUNING_SEED = 0
DEFAULT_RULES = [rule for rule in RULES if rule not in ("gmc+model+falling", "residual+falling", "residual+model")]


def key_of(record: Mapping[str, Any]) -> str:
    """All that decides a training's result."""
    return results.key_of({name: record[name] for name in ("tuning", *(field.name for field in fields(Cell)))})


class Trainings:
    """The file of results, to which trainings are added."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path, self._folder = path, folder
        records = [record for _, record in results.read(path) if "rule" in record]
        self._ended = {key_of(record): record for record in records}
        self._data: dict[str, Data] = {}
        self._started = False

    def __call__(self, cell: Cell, tuning: bool = False) -> dict[str, Any]:
        """The record of a cell, which is trained unless the file has it."""
        key = key_of({**cell.record(), "tuning": tuning})
        if key not in self._ended:
            data = self._load(cell.name)
            self._begin()
            self._ended[key] = {"tuning": tuning, **train(data, cell, tuning)}
            results.append(self._path, self._ended[key])
        return self._ended[key]

    def _load(self, name: str) -> Data:
        if name not in self._data:
            self._data = {name: TASKS[name].load(self._folder)}  # one at a time
        return self._data[name]

    def _begin(self) -> None:
        """A line for each start says where its trainings ran."""
        if not self._started:
            results.append(self._path, {"machine": measure.machine()})
        self._started = True


# --- what is trained -------------------------------------------------------------------------------------------------


def settings_of(options: argparse.Namespace, name: str) -> list[Cell]:
    """Dense training in each of a task's settings, at no rate yet."""
    spreads = [spread for spread in options.spreads if spread == "iid" or TASKS[name].score == "accuracy"]
    steps = options.steps or TASKS[name].steps
    return [Cell(name, DENSE, TUNING_SEED, 0.0, steps, ranks, spread)
            for ranks, spread in itertools.product(options.ranks, spreads)]  # fmt: skip


def best_rate(trainings: Trainings, setting: Cell, rates: Sequence[float]) -> float:
    """Dense training's best of several rates; one is taken as it is."""
    if len(rates) == 1:
        return rates[0]
    pick = max if setting.task.score in HIGHER else min
    return pick(rates, key=lambda rate: trainings(replace(setting, rate=rate), tuning=True)["score"])


def cells(options: argparse.Namespace, tuned: Sequence[Cell]) -> Iterator[Cell]:
    """Those of a task: all settings at a coverage and a seed before the next, dense training before the rules."""
    rules = [rule for rule in options.rules if RULES[rule].adam == tuned[0].task.adam] if tuned else []
    for seed, coverage, setting, factor in itertools.product(options.seeds, options.coverage, tuned, options.factors):
        dense = replace(setting, seed=seed, factor=factor, rate=setting.rate * factor)
        yield dense
        yield from (replace(dense, rule=rule, coverage=coverage) for rule in rules)


def run(options: argparse.Namespace) -> None:
    trainings = Trainings(options.output, options.data)
    for name in options.tasks:
        rates = options.rates or TASKS[name].rates
        tuned = [replace(one, rate=best_rate(trainings, one, rates)) for one in settings_of(options, name)]
        planned = list(cells(options, tuned))
        with measure.progress(len(planned)) as advance:
            for cell in planned:
                advance(str(cell))
                trainings(cell)


# --- the command -----------------------------------------------------------------------------------------------------


def coverage(word: str) -> float:
    try:
        found = math.inf if word == "all" else float(word)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise argparse.ArgumentTypeError(f"{word!r} is not a coverage: density × steps, above 0, or all")
    return found


def factor(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number above 0")
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add, seeds = parser.add_argument, [11, 12, 13]
    add("--data", type=Path, default=Path(), metavar="FOLDER", help="with mnist.npz and the others")
    add("-o", "--output", type=output_file, default=Path("accuracy.jsonl"), metavar="FILE.jsonl")
    add("--tasks", nargs="*", choices=list(TASKS), default=[], help="default: none, the file is shown")
    add("--rules", nargs="+", choices=list(RULES), default=DEFAULT_RULES, help="dense is always trained")
    add("--coverage", nargs="+", type=coverage, default=[20.0, 7.0, 60.0], metavar="C", help="all: everything is sent")
    add("--ranks", nargs="+", type=count, default=[2, 4, 8])
    add("--spreads", nargs="+", choices=SPREADS, default=list(SPREADS), help="classes: two a rank, for images")
    add("--factors", nargs="+", type=factor, default=[1.0, 1.5], help="of dense training's best rate")
    add("--rates", nargs="+", type=factor, help="to choose from; one is taken as it is; default: the task's")
    add("--seeds", nargs="+", type=count, default=seeds, help=f"default: {' '.join(map(str, seeds))}")
    add("--steps", type=count, help="default: the task's")
    add("--add", nargs="+", type=Path, default=[], metavar="FILE.jsonl", help="results to show as well")
    add("--nice", action="store_true", help="leave the processors to others")
    add("--picture", type=output_file, metavar="OUT.png")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status; what is wrong with the input is said in one line."""
    return run_listed(parse(argv), run, show, draw)


if __name__ == "__main__":
    sys.exit(main())
