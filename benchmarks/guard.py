"""When the guard against divergence raises its alarm: `benchmarks/guard.py --data FOLDER -o FILE.jsonl`.

Trainings of `benchmarks/accuracy.py`'s tasks, and of MNIST with pixels of mean 0 and deviation 1, which breaks at lower
rates, are made with SGD's or Adam's own momentum behind every memory that can stand there, also those that the recipe
would not choose. A line of FILE.jsonl has the score, the largest ratio of a residual to a usual gradient at a check,
and the alarms. A training is broken if it met numbers that are not finite, where it ends here (the guard says so after
20 such steps), or came less than half as far from a guess as dense training of the same seed.

Without `--tasks` nothing is trained: the file is shown.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import training
from accuracy_tasks import TASKS as ACCURACY
from script import run_listed
from torch import nn

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.lab import measure, results
from sparsewire.lab.arguments import count, output_file
from sparsewire.lab.tables import number, table
from sparsewire.lab.tasks.scores import HIGHER
from sparsewire.lab.tasks.task import Data, Part, Task, evaluate
from sparsewire.lab.tasks.workloads import WORKLOADS
from sparsewire.training.schedule import SchemeSchedule, Settings, falling_ratio

DENSE = "dense"
SGD = ("gain(momentum=0.9)", "gmc(momentum=0.9)", "dgc(momentum=0.9)", "dgc(momentum=0.9,mask=false)", "residual")
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels


def standardized(folder: Path) -> Data:
    data = ACCURACY["mnist"].load(folder)
    train, valid, test = map(_standardized, (data.train, data.valid, data.test))
    return Data(train, valid, test, data.classes)


def _standardized(part: Part) -> Part:
    return (part[0] - MEAN) / DEVIATION, part[1]


TASKS: dict[str, Task] = {
    **ACCURACY,
    "standardized": replace(ACCURACY["mnist"], load=standardized),
    "digits": WORKLOADS["mlp-digits"].task,
}


@dataclass(frozen=True)
class Cell(training.Cell):
    """One training; the rule is its memory."""

    coverage: float = math.inf
    falling: bool = False  # one threshold for the model, and a ratio that falls
    on_divergence: str = "warn"

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def fits(self) -> bool:
        return self.rule != DENSE

    def settings(self, model: nn.Module) -> Settings:
        ratio = min(1.0, self.coverage / self.steps)
        scheme = sw.scheme(f"topk({ratio}) | memory={self.rule if self.fits else 'none'}")
        falls = falling_ratio(self.steps, ratio) if self.falling and ratio < 1 else None
        schedule = SchemeSchedule(scheme, 0 if self.fits else self.steps, falls)
        per = "model" if self.falling else "parameter"
        return Settings(schedule, seed=self.seed, select_per=per, on_divergence=self.on_divergence)

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "coverage": self.coverage if self.fits else None}


class Watched(training.Rank):
    """A rank that remembers the largest ratio that the guard has seen."""

    largest = 0.0

    def _average(self) -> None:
        super()._average()
        self.largest = max(self.largest, self.averager.stats().get("guard", {}).get("ratio", 0.0))


def train(data: Data, cell: Cell) -> dict[str, Any]:
    training.torch.manual_seed(cell.seed)
    model = cell.task.model(data)
    watched: list[Watched] = []

    def on_rank(comm: Communicator) -> nn.Module | None:
        training.torch.set_num_threads(1)
        replica = training.copy.deepcopy(model).train()
        cell.task.prepare(replica)
        rank = Watched(comm, replica, cell)
        watched.append(rank)
        draw, (x, y) = training.torch.Generator().manual_seed(1000 * cell.seed + comm.rank), data.train
        try:
            for step in range(cell.steps):
                chosen = training.torch.randint(len(x), (cell.task.batch,), generator=draw)
                rank.step(step, (x[chosen], y[chosen]))
        except training.NotFinite:
            return None
        return replica

    first = run_ranks(cell.ranks, on_rank, timeout=600)[0]
    score = None if first is None else round(evaluate(first, data.test, cell.task.score), 5)
    found = watched[0].averager.stats().get("guard", {"alarms": []})
    usual = {"score": score, "ratio": float(f"{watched[0].largest:.4g}"), "alarms": found["alarms"]}
    return {**cell.record(), **usual, "classes": data.classes}


# --- all of them -----------------------------------------------------------------------------------------------------


def cells(options: argparse.Namespace, name: str) -> list[Cell]:
    adam, steps = TASKS[name].adam, options.steps or TASKS[name].steps
    found = []
    for seed, rate in itertools.product(options.seeds, options.rates or TASKS[name].rates):
        dense = Cell(name, DENSE, seed, rate, steps, options.ranks)
        rules = [rule for rule in options.memories if not adam or rule == "residual"]
        found.append(dense)
        found += [
            replace(dense, rule=rule, coverage=coverage, falling=options.falling, on_divergence=action)
            for rule, coverage, action in itertools.product(rules, options.coverage, options.actions)
        ]
    return found


def run(options: argparse.Namespace) -> None:
    known = {key_of(record) for _, record in results.read(options.output) if "rule" in record}
    for name in options.tasks:
        planned = [cell for cell in cells(options, name) if key_of(cell.record()) not in known]
        data = TASKS[name].load(options.data)
        with measure.progress(len(planned)) as advance:
            for cell in planned:
                advance(str(cell))
                results.append(options.output, train(data, cell))


def key_of(record: Mapping[str, Any]) -> str:
    names = ("name", "rule", "seed", "rate", "steps", "ranks", "coverage", "falling", "on_divergence")
    return results.key_of({name: record[name] for name in names})


# --- what is shown ---------------------------------------------------------------------------------------------------


def broken(record: Mapping[str, Any], dense: float | None) -> bool:
    """Whether a training lost most of what dense training learnt."""
    score = record["score"]
    if score is None or dense is None:
        return score is None
    if TASKS[record["name"]].score in HIGHER:
        guess = 1 / record["classes"]
        return bool(score - guess < (dense - guess) / 2)
    return bool(math.log(record["classes"]) - score < (math.log(record["classes"]) - dense) / 2)


def show(records: Sequence[Mapping[str, Any]]) -> str:
    """A line for each task, memory and rate: how many were broken, and what the guard saw and said."""
    mine = [record for record in records if "rule" in record]
    dense = {_pair(record): record["score"] for record in mine if record["rule"] == DENSE}
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for record in mine:
        if record["rule"] != DENSE:
            key = (record["name"], record["rate"], record["rule"], record["on_divergence"])
            groups.setdefault(key, []).append(record)
    return table(
        ["task", "rate", "memory", "on_divergence", "runs", "dense", "score", "ended well", "largest ratio", "alarms",
         "not finite", "otherwise broken", "largest ratio of each", "alarms"],
        [_line(key, some, dense) for key, some in sorted(groups.items())],
    )  # fmt: skip


def _line(
    key: tuple[Any, ...], some: Sequence[Mapping[str, Any]], dense: Mapping[Any, float | None]
) -> list[str]:  # fmt: skip
    lost = [one for one in some if one["score"] is None]
    bad = [one for one in some if one not in lost and broken(one, dense.get(_pair(one)))]
    well = [one for one in some if one not in lost + bad]
    scores = [_shown(one["score"]) for one in some]
    base = sorted({_shown(dense.get(_pair(one))) for one in some})
    return [key[0], f"{key[1]:g}", *key[2:], str(len(some)), " ".join(base), " ".join(scores), str(len(well)),
            number(max((one["ratio"] for one in well), default=0.0), 1), str(sum(bool(one["alarms"]) for one in well)),
            str(len(lost)), str(len(bad)), " ".join(f"{one['ratio']:.2g}" for one in bad),
            str(sum(bool(one["alarms"]) for one in bad))]  # fmt: skip


def _shown(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"


def _pair(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("name", "seed", "rate", "steps", "ranks"))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path(), metavar="FOLDER", help="with mnist.npz and the others")
    add("-o", "--output", type=output_file, default=Path("guard.jsonl"), metavar="FILE.jsonl")
    add("--tasks", nargs="*", choices=list(TASKS), default=[], help="default: none, the file is shown")
    add("--memories", nargs="+", default=list(SGD), help="of Adam's tasks: residual alone")
    add("--coverage", nargs="+", type=float, default=[20.0, 3.5], metavar="C")
    add("--rates", nargs="+", type=float, help="default: the task's")
    add("--ranks", type=count, default=2)
    add("--seeds", nargs="+", type=count, default=[21, 22])
    add("--steps", type=count, help="default: the task's")
    add("--falling", action="store_true", help="one threshold for the model, and a ratio that falls")
    add("--actions", nargs="+", choices=["warn", "dense"], default=["warn"], help="what an alarm does")
    add("--nice", action="store_true", help="leave the processors to others")
    parser.set_defaults(add=[], picture=None)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    logging.getLogger("sparsewire").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    return run_listed(options, run, show)


if __name__ == "__main__":
    sys.exit(main())
