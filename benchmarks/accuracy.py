"""What compression costs in accuracy behind momentum and Adam: `benchmarks/accuracy.py --data FOLDER`.

Four ranks are threads of this process, each with its own replica of model and optimizer, its own batches and its own
`Averager`: the rules as a training runs them, but no DDP and no network. All rules of a seed start from the same
weights, see the same batches (drawn with replacement) and make the same number of steps, while the rate falls linearly
to 0; with AdamW it rises for a tenth of the steps first. Parameters of fewer than 1,024 elements travel dense.

1. The rate is dense training's best of `--rates`, at a seed of its own, by a part of the data that is not reported.
2. Every rule trains at that rate: none of them is tuned.

dense      no compression
residual   error feedback; the momentum, or Adam's β1, stays in the optimizer behind it
dgc        momentum correction; with AdamW, error feedback and β1 = 0
gmc        global momentum compression (SGD only)
ours       with SGD, dgc with a ratio that falls as 1/t, the same on average, and one threshold for the whole model;
           with AdamW, the same selection with error feedback and β1 = 0
longer     ours at the smallest ratio with `--longer` times the steps

"to 90 %": steps until the training loss, a moving mean, has fallen by 90 % of what dense's falls in all.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accuracy_picture import RULES, Row, draw, groups
from accuracy_tasks import MOMENTUM, TASKS, Data, Task, evaluate, loss_of
from script import add_arguments, run_script
from torch import nn

import sparsewire as sw
from sparsewire.averager import Averager
from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import InputError
from sparsewire.lab import measure
from sparsewire.lab.arguments import count, share
from sparsewire.lab.tables import table
from sparsewire.schedule import SchemeSchedule, Settings, falling_ratio
from sparsewire.torch.optimizers import Fit, fit_optimizer

RANKS, TUNING_SEED = 4, 0


@dataclass(frozen=True)
class Cell:
    """One training."""

    name: str
    rule: str
    ratio: float
    seed: int
    rate: float
    steps: int

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    def settings(self) -> Settings:
        ours = self.rule in ("ours", "longer")
        held = (ours or self.rule in ("dgc", "gmc")) and not self.task.adam
        memory = f"{'gmc' if self.rule == 'gmc' else 'dgc'}(momentum={MOMENTUM})" if held else "residual"
        scheme = sw.scheme(f"topk({self.ratio}) | memory={memory}")
        falling = falling_ratio(self.steps, self.ratio) if ours else None
        schedule = SchemeSchedule(scheme, self.steps if self.rule == "dense" else 0, falling)
        return Settings(schedule, seed=self.seed, select_per="model" if ours else "parameter")


# --- training --------------------------------------------------------------------------------------------------------


class Rank:
    """One rank's replica and all it needs for a step."""

    def __init__(self, comm: Communicator, model: nn.Module, cell: Cell) -> None:
        self.model, self.cell, settings = model, cell, cell.settings()
        self.named = dict(model.named_parameters())
        self.optimizer = cell.task.optimizer(model, cell.rate)
        fit = self._fit(settings) if cell.rule not in ("dense", "residual") else None
        self.averager = Averager(comm, replace(settings, momenta=fit.momenta, rates=fit.rates) if fit else settings)
        if fit:
            fit.attach(lambda: self.averager.was_sparse)

    def _fit(self, settings: Settings) -> Fit | None:
        return fit_optimizer(self.optimizer, settings, self.named)

    def step(self, step: int, part: tuple[torch.Tensor, torch.Tensor]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.cell.task.rate_at(self.cell.rate, step / self.cell.steps)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, part)
        loss.backward()  # type: ignore[no-untyped-call]
        self._average()
        self.optimizer.step()
        return float(loss.detach())

    def _average(self) -> None:
        flat = {name: one.grad.reshape(-1) for name, one in self.named.items() if one.grad is not None}
        self.averager.put({name: gradient.numpy() for name, gradient in flat.items()})
        if not self.averager.finish():
            raise InputError(f"{self.cell} met a gradient that is not finite")
        for name, mean in flat.items():
            self.named[name].grad = mean.view_as(self.named[name])


def train_rank(comm: Communicator, model: nn.Module, data: Data, cell: Cell) -> tuple[nn.Module, list[float], int]:
    torch.set_num_threads(1)
    rank = Rank(comm, copy.deepcopy(model).train(), cell)
    draw = torch.Generator().manual_seed(1000 * cell.seed + comm.rank)
    x, y = data.train
    losses = []
    for step in range(cell.steps):
        chosen = torch.randint(len(x), (cell.task.batch,), generator=draw)
        losses.append(rank.step(step, (x[chosen], y[chosen])))
    return rank.model, losses, comm.bytes_sent


def train(data: Data, cell: Cell, tuning: bool = False) -> Row:
    """What came of a training; batch norms are those of rank 0, as with DDP."""
    torch.manual_seed(cell.seed)
    model = cell.task.model(data)
    ranks = run_ranks(RANKS, lambda comm: train_rank(comm, model, data, cell), timeout=600)
    losses = [statistics.fmean(some) for some in zip(*(found[1] for found in ranks), strict=True)]
    score = evaluate(ranks[0][0], data.valid if tuning else data.test, cell.task.score)
    facts: Row = {"task": cell.name, "rule": cell.rule, "ratio": None if cell.rule == "dense" else cell.ratio}
    facts |= {"seed": cell.seed, "rate": cell.rate, "steps": cell.steps, "score": score, "curve": smooth(losses)}
    return {**facts, "bytes": ranks[0][2], "parameters": sum(one.numel() for one in model.parameters())}


def smooth(losses: Sequence[float]) -> list[float]:
    """The mean of the last fortieth of all steps at each step."""
    width = max(1, len(losses) // 40)
    return [statistics.fmean(losses[max(0, end - width) : end]) for end in range(1, len(losses) + 1)]


def compared(row: Row, dense: Row) -> Row:
    """The row with what it says beside dense's of the same seed."""
    target = dense["curve"][0] - 0.9 * (dense["curve"][0] - dense["curve"][-1])
    reached = next((step + 1 for step, loss in enumerate(row["curve"]) if loss <= target), None)
    return {
        **row,
        "difference": row["score"] - dense["score"],
        "to_90": reached,
        "fewer": dense["bytes"] / row["bytes"],
    }


# --- all of them -----------------------------------------------------------------------------------------------------


def plan(options: argparse.Namespace, name: str, rate: float, seed: int) -> Iterator[Cell]:
    """Dense first, which the others are compared with."""
    steps = options.steps or TASKS[name].steps
    yield Cell(name, "dense", options.ratios[0], seed, rate, steps)
    for rule in options.rules:
        if rule != "dense" and not (rule == "gmc" and TASKS[name].adam):
            yield from (Cell(name, rule, ratio, seed, rate, steps) for ratio in options.ratios)
    if options.longer > 1:
        yield Cell(name, "longer", min(options.ratios), seed, rate, options.longer * steps)


def tune(options: argparse.Namespace, name: str, data: Data, advance: measure.Advance) -> list[Row]:
    """Dense training at each rate; nothing if there is no choice."""
    rates = options.rates or TASKS[name].rates
    found = []
    for rate in rates if len(rates) > 1 else ():
        advance(f"{name}, dense, rate {rate:g}")
        steps = options.steps or TASKS[name].steps
        found.append(train(data, Cell(name, "dense", options.ratios[0], TUNING_SEED, rate, steps), tuning=True))
    return found


def best_rate(options: argparse.Namespace, name: str, tried: Sequence[Row]) -> float:
    if not tried:
        return float((options.rates or TASKS[name].rates)[0])
    pick = max if TASKS[name].score == "accuracy" else min
    return float(pick(tried, key=lambda row: row["score"])["rate"])


def measured(options: argparse.Namespace, name: str, advance: measure.Advance) -> tuple[list[Row], list[Row]]:
    """All trainings of a task: those for its rate, and those that are reported."""
    data = TASKS[name].load(options.data)
    tried, rows = tune(options, name, data, advance), []
    for seed in options.seeds:
        dense: Row | None = None
        for cell in plan(options, name, best_rate(options, name, tried), seed):
            advance(f"{name}, {cell.rule}, {cell.ratio:.2%}, seed {seed}")
            row = train(data, cell)
            dense = dense or row
            rows.append(compared(row, dense))
    return tried, rows


def run(options: argparse.Namespace) -> dict[str, Any]:
    before = [json.loads(path.read_text(encoding="utf-8")) for path in options.add]
    tried, rows = ([row for one in before for row in one[key]] for key in ("tuning", "rows"))
    total = sum(len(options.rates or TASKS[name].rates) + len(options.seeds) * len([*plan(options, name, 1.0, 0)])
                for name in options.tasks)  # fmt: skip
    with measure.progress(total) as advance:
        for name in options.tasks:
            more_tried, more = measured(options, name, advance)
            tried, rows = tried + more_tried, rows + more
    machine = measure.machine() if options.tasks or not before else before[0]["machine"]
    return {"machine": machine, "ranks": RANKS, "tuning": tried, "rows": rows}


# --- what is shown ---------------------------------------------------------------------------------------------------


def points(task: str, value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}" if TASKS[task].score == "accuracy" else f"{value:{sign}.3f}"


def line(key: tuple[str, str, float | None], some: Sequence[Row]) -> list[str]:
    task, rule, ratio = key
    means = {name: statistics.fmean(row[name] for row in some) for name in ("score", "difference", "bytes", "fewer")}
    reached = [row["to_90"] for row in some if row["to_90"] is not None]
    steps = f"{statistics.fmean(reached):.0f}" if len(reached) == len(some) else f"{len(reached)} of {len(some)} did"
    by_seed = " ".join(points(task, row["difference"], "+") for row in some) if rule != "dense" else ""
    difference = points(task, means["difference"], "+") if rule != "dense" else ""
    return [task, f"{ratio:.1%}" if ratio else "", rule, points(task, means["score"]), difference, by_seed, steps,
            f"{means['bytes'] / 1e6:.2f}", f"{means['fewer']:.0f}"]  # fmt: skip


def show(result: dict[str, Any]) -> str:
    headers = ["task", "ratio", "rule", "score", "against dense", "by seed", "to 90 %", "MB a rank", "× fewer"]
    lines = [line(key, some) for key, some in groups(result["rows"]).items()]
    about = [describe(name, result) for name in TASKS if any(row["task"] == name for row in result["rows"])]
    return "\n".join([measure.machine_line(result["machine"]), *about, "", table(headers, lines)])


def describe(name: str, result: dict[str, Any]) -> str:
    task, rows = TASKS[name], [row for row in result["rows"] if row["task"] == name]
    unit = "test accuracy in %" if task.score == "accuracy" else "test loss in nats"
    seeds = " ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
    tried = ", ".join(
        f"{row['rate']:g}: {points(name, row['score'])}" for row in result["tuning"] if row["task"] == name
    )
    what = (
        f"{name}: {task.what}, {rows[0]['parameters']:,} parameters, {rows[0]['steps']} steps of {result['ranks']} × "
    )
    return f"{what}{task.batch}; {unit}; seeds {seeds}; rate {rows[0]['rate']:g} (tried: {tried or 'no other'})"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_arguments(parser, TASKS)
    rules = [rule for rule in RULES if rule != "longer"]
    parser.add_argument("--rules", nargs="+", choices=rules, default=rules, help="dense is always trained")
    parser.add_argument("--ratios", nargs="+", type=share, default=[0.01, 0.001], help="default: 1%% 0.1%%")
    parser.add_argument("--longer", type=count, default=1, metavar="N", help="ours with N times the steps as well")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(parse(argv), run, show, draw)


if __name__ == "__main__":
    sys.exit(main())
