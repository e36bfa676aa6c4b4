"""Quality against bits of training that speaks rarely: `benchmarks/local.py --data FOLDER`.

Four workers are threads of this process, each with its own replica, optimizer and batches, all drawn with replacement;
they meet through `local_steps`, as a training does, but without a network. Every rule of a seed starts from the same
weights, sees the same batches and makes the same number of optimizer steps, while the rate falls linearly to 0.

1. Every rule's learning rate is its best of `--rates`, by data that is not reported, at a seed of its own.
2. Every rule trains at its rate.

Sent and received are the bytes of frames with all headers that a worker hands to the root and gets from it
(`exchange=root`: the mean is coded once), per parameter and optimizer step; × fewer is against float32 in every step.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import script
import torch
from local_picture import draw
from local_rules import LOCAL, RULES, WORKERS, Rule, tested, workers_data
from script import parse_rules, run_script
from torch import nn

import sparsewire as sw
from sparsewire.comm import Communicator, run_ranks
from sparsewire.lab import measure
from sparsewire.lab.tables import table
from sparsewire.lab.tasks.task import Data, Part, Task, evaluate, loss_of
from sparsewire.torch import local_steps
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import SchemeSchedule, Settings

Row = dict[str, Any]
TUNING_SEED = 0
DENSE = "nonzero | values=raw | memory=none"


@dataclass(frozen=True)
class Cell(script.Cell):
    """One training."""

    steps: int

    @property
    def task(self) -> Task:
        return LOCAL[self.name]


# --- training --------------------------------------------------------------------------------------------------------


def train_worker(
    comm: Communicator, model: nn.Module, part: Part, cell: Cell, rule: Rule
) -> tuple[nn.Module, float, int, int]:
    torch.set_num_threads(1)
    model = copy.deepcopy(model).train()
    optimizer = cell.task.optimizer(model, cell.rate)
    average = _every_step(comm, model, cell) if rule.every is None else None
    scheme = f"{rule.scheme or DENSE}{' | exchange=root' if rule.scheme else ''}"
    link = None if average else local_steps(model, optimizer, scheme, seed=cell.seed, group=comm, **rule.arguments)
    draws, losses = torch.Generator().manual_seed(1000 * cell.seed + comm.rank), []
    for step in range(cell.steps):
        for group in optimizer.param_groups:
            group["lr"] = cell.task.rate_at(cell.rate, step / cell.steps)
        chosen = torch.randint(len(part[0]), (cell.task.batch,), generator=draws)
        optimizer.zero_grad()
        loss = loss_of(model, (part[0][chosen], part[1][chosen]))
        loss.backward()  # type: ignore[no-untyped-call]
        if average:
            average()
        optimizer.step()
        losses.append(float(loss.detach()))
    if link is not None:
        link.detach()
    return model, statistics.fmean(losses[-cell.steps // 20 :]), comm.bytes_sent, comm.bytes_received


def _every_step(comm: Communicator, model: nn.Module, cell: Cell) -> Any:
    averager = Averager(comm, Settings(SchemeSchedule(sw.scheme(DENSE), cell.steps)))
    named = dict(model.named_parameters())

    def average() -> None:
        flat = {name: one.grad.reshape(-1) for name, one in named.items() if one.grad is not None}
        averager.put({name: gradient.numpy() for name, gradient in flat.items()})
        averager.finish()
        for name, mean in flat.items():
            named[name].grad = mean.view_as(named[name])

    return average


def train(data: Data, cell: Cell, tuning: bool = False) -> Row:
    """What came of a training; the bytes are those of a worker that is not the root."""
    torch.manual_seed(cell.seed)
    model, parts, rule = cell.task.model(data), workers_data(cell.name, data), RULES[cell.rule]
    found = run_ranks(WORKERS, lambda comm: train_worker(comm, model, parts[comm.rank], cell, rule), timeout=600)
    trained, loss, sent, received = found[-1]
    score = evaluate(trained, tested(cell.name, data.valid if tuning else data.test), cell.task.score)
    numbers = sum(one.numel() for one in model.parameters())
    dense = 4 * numbers * cell.steps
    facts: Row = {"task": cell.name, "rule": cell.rule, "seed": cell.seed, "rate": cell.rate, "steps": cell.steps}
    return {
        **facts, "score": score, "loss": loss, "parameters": numbers, "sent": sent, "received": received,
        "bits": 8 * sent / numbers / cell.steps, "fewer": dense / sent, "fewer_received": dense / received,
    }  # fmt: skip


# --- all of them -----------------------------------------------------------------------------------------------------


def tune(options: argparse.Namespace, name: str, data: Data, advance: measure.Advance) -> list[Row]:
    """Every rule at each rate; nothing if there is no choice."""
    rates, steps = options.rates or LOCAL[name].rates, options.steps or LOCAL[name].steps
    cells = [Cell(name, rule, TUNING_SEED, rate, steps) for rule in options.rules for rate in rates]
    found = []
    for cell in cells if len(rates) > 1 else ():
        advance(f"{name}, {cell.rule}, rate {cell.rate:g}")
        found.append(train(data, cell, tuning=True))
    return found


def best_rate(options: argparse.Namespace, name: str, rule: str, tried: Sequence[Row]) -> float:
    mine = [row for row in tried if row["rule"] == rule]
    if not mine:
        return float((options.rates or LOCAL[name].rates)[0])
    pick = max if LOCAL[name].score == "accuracy" else min
    return float(pick(mine, key=lambda row: row["score"])["rate"])


def measured(options: argparse.Namespace, name: str, advance: measure.Advance) -> tuple[list[Row], list[Row]]:
    """All trainings of a task: those for the rates, and those that are reported."""
    data, steps = LOCAL[name].load(options.data), options.steps or LOCAL[name].steps
    tried, rows = tune(options, name, data, advance), []
    for seed in options.seeds:
        for rule in options.rules:
            advance(f"{name}, {rule}, seed {seed}")
            rows.append(train(data, Cell(name, rule, seed, best_rate(options, name, rule, tried), steps)))
    return tried, rows


def run(options: argparse.Namespace) -> dict[str, Any]:
    before = [json.loads(path.read_text(encoding="utf-8")) for path in options.add]
    tried, rows = ([row for one in before for row in one[key]] for key in ("tuning", "rows"))
    rates = sum(len(options.rates or LOCAL[name].rates) for name in options.tasks)
    with measure.progress(len(options.rules) * (rates + len(options.tasks) * len(options.seeds))) as advance:
        for name in options.tasks:
            more_tried, more = measured(options, name, advance)
            tried, rows = tried + more_tried, rows + more
    machine = measure.machine() if options.tasks or not before else before[0]["machine"]
    return {"machine": machine, "workers": WORKERS, "tuning": tried, "rows": rows}


# --- what is shown ---------------------------------------------------------------------------------------------------


def points(name: str, value: float) -> str:
    return f"{100 * value:.2f}" if LOCAL[name].score == "accuracy" else f"{value:.3f}"


def line(name: str, rule: str, some: Sequence[Row]) -> list[str]:
    means = {key: statistics.fmean(row[key] for row in some) for key in ("score", "bits", "fewer", "fewer_received")}
    by_seed = " ".join(points(name, row["score"]) for row in some)
    rates = " ".join(dict.fromkeys(f"{row['rate']:g}" for row in some))
    return [name, rule, rates, points(name, means["score"]), by_seed, f"{means['bits']:.5f}", f"{means['fewer']:,.0f}",
            f"{means['fewer_received']:,.0f}"]  # fmt: skip


def show(result: dict[str, Any]) -> str:
    headers = ["task", "rule", "rate", "score", "by seed", "bits sent", "× fewer sent", "× fewer received"]
    found: dict[tuple[str, str], list[Row]] = {}
    for row in result["rows"]:
        found.setdefault((row["task"], row["rule"]), []).append(row)
    order = sorted(found, key=lambda key: ([*LOCAL].index(key[0]), [*RULES].index(key[1])))
    about = [describe(name, result) for name in LOCAL if any(row["task"] == name for row in result["rows"])]
    lines = [line(*key, found[key]) for key in order]
    return "\n".join([measure.machine_line(result["machine"]), *about, "", table(headers, lines)])


def describe(name: str, result: dict[str, Any]) -> str:
    task, rows = LOCAL[name], [row for row in result["rows"] if row["task"] == name]
    unit = "test accuracy in %" if task.score == "accuracy" else "test loss in nats"
    seeds = " ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
    what = f"{name}: {task.what}, {rows[0]['parameters']:,} parameters, {rows[0]['steps']} steps of {WORKERS} × "
    tried = [row for row in result["tuning"] if row["task"] == name]
    return "\n".join([f"{what}{task.batch}; {unit}; seeds {seeds}", *map(rates_of, _by_rule(tried).items())])


def rates_of(found: tuple[str, Sequence[Row]]) -> str:
    tried = ", ".join(f"{row['rate']:g}: {points(row['task'], row['score'])}" for row in found[1])
    return f"  {found[0]}: rates tried {tried}"


def _by_rule(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {rule: some for rule in RULES if (some := [row for row in rows if row["rule"] == rule])}


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(parse_rules(__doc__, LOCAL, RULES, argv), run, show, draw)


if __name__ == "__main__":
    sys.exit(main())
