"""Accuracy against bytes of federated averaging: `benchmarks/federated.py --data FOLDER --tasks classes10 …`.

Server and clients live in this process and exchange the bytes that a network would carry. In every round some clients,
drawn at random, receive, make a few steps of SGD on their own images and answer. All rules of a seed have the same
initial weights, which every client knows, the same clients in every round and the same batches; the rate falls linearly
to 0. It is FedAvg's best of `--rates`, at a seed of its own, by images that are not reported.

Bytes are whole messages, headers and what brings clients up to date that were absent included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import script
import torch
from federated_picture import draw
from federated_rules import RULES, SETTINGS, Rule, Setting
from script import parse_rules, run_script
from torch import nn

from sparsewire.federated import Client, Server
from sparsewire.lab import measure
from sparsewire.lab.tables import table
from sparsewire.lab.tasks.images import mnist, perceptron
from sparsewire.lab.tasks.task import Data, Part, evaluate, loss_of

Row = dict[str, Any]
TUNING_SEED, SHOWN = 0, 40  # points of a curve
RATES = (0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True)
class Cell(script.Cell):
    """One training."""

    rounds: int

    @property
    def setting(self) -> Setting:
        return SETTINGS[self.name]

    def rate_at(self, round_: int) -> float:
        return self.rate * (1 - round_ / self.rounds)


# --- a training ------------------------------------------------------------------------------------------------------


class Training:
    """The server, all clients and their images."""

    def __init__(self, data: Data, cell: Cell, rule: Rule) -> None:
        torch.manual_seed(cell.seed)
        self.model, self.cell, self.rule = perceptron(data), cell, rule
        start = {name: one.detach().numpy() for name, one in self.model.named_parameters()}
        dense = rule.dense({name: array.shape for name, array in start.items()})
        self.server = Server(start, rule.up, rule.down, dense=dense, seed=cell.seed, **rule.settings)
        told = {"weights": start, "scheme_down": rule.down, "dense": dense, "seed": cell.seed}
        self.clients = [Client(rule.up, name=i, **told) for i in range(cell.setting.clients)]
        self.parts = cell.setting.parts(data, cell.seed)
        self.batches = torch.Generator().manual_seed(1000 + cell.seed)
        self.draw, self.met = np.random.default_rng(cell.seed), set[int]()

    def round(self) -> tuple[int, int]:
        """(bytes up, bytes down)."""
        chosen = self.draw.choice(len(self.clients), self.cell.setting.take_part, replace=False).tolist()
        for client in chosen:
            first = {} if client in self.met else {"base": 0}
            weights = self.clients[client].receive(self.server.broadcast(client, **first))
            self.met.add(client)
            part = self.parts[client]
            message = self.clients[client].update(self._train(weights, part), examples=len(part[0]))
            self.server.add(client, message)
        report = self.server.finish_round()
        return report.bytes_up, report.bytes_down

    def _train(self, weights: Mapping[str, np.ndarray], part: Part) -> dict[str, np.ndarray]:
        _set(self.model, weights)
        optimizer = torch.optim.SGD(self.model.parameters(), self.cell.rate_at(self.server.round))
        for _ in range(self.cell.setting.local_steps):
            some = torch.randint(len(part[0]), (self.cell.setting.batch,), generator=self.batches)
            optimizer.zero_grad()
            loss_of(self.model, (part[0][some], part[1][some])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {name: one.detach().numpy() for name, one in self.model.named_parameters()}

    def score(self, part: Part) -> float:
        _set(self.model, self.server.weights)
        return evaluate(self.model, part, "accuracy")


def _set(model: nn.Module, weights: Mapping[str, np.ndarray]) -> None:
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(torch.from_numpy(weights[name]))


def train(data: Data, cell: Cell, tuning: bool = False) -> Row:
    torch.set_num_threads(1)
    start, training, curve = time.process_time(), Training(data, cell, RULES[cell.rule]), []
    up = down = 0
    for round_ in range(cell.rounds):
        more_up, more_down = training.round()
        up, down = up + more_up, down + more_down
        if not tuning and (round_ + 1) % max(1, cell.rounds // SHOWN) == 0:
            curve.append([round_ + 1, up, down, training.score(data.test)])
    dense = training.server.model.dense_bytes * cell.setting.take_part * cell.rounds
    score = training.score(data.valid if tuning else data.test)
    return {
        "task": cell.name, "rule": cell.rule, "seed": cell.seed, "rate": cell.rate, "rounds": cell.rounds,
        "parameters": sum(one.numel() for one in training.model.parameters()), "up": up, "down": down,
        "fewer_up": dense / up, "fewer_down": dense / down, "score": score,
        "curve": curve, "cached": training.server.cached_bytes, "cpu_seconds": time.process_time() - start,
    }  # fmt: skip


# --- all of them -----------------------------------------------------------------------------------------------------


def tune(options: argparse.Namespace, name: str, data: Data, advance: measure.Advance) -> Iterator[Row]:
    """FedAvg at each rate, if there is a choice."""
    rates = options.rates or RATES
    for rate in rates if len(rates) > 1 else ():
        advance(f"{name}, FedAvg, rate {rate:g}")
        yield train(data, Cell(name, "FedAvg", TUNING_SEED, rate, rounds_of(options, name)), tuning=True)


def rounds_of(options: argparse.Namespace, name: str) -> int:
    return int(options.steps or SETTINGS[name].rounds)


def run(options: argparse.Namespace) -> Row:
    before = [json.loads(path.read_text(encoding="utf-8")) for path in options.add]
    tried, rows = ([row for one in before for row in one[key]] for key in ("tuning", "rows"))
    data = mnist(options.data) if options.tasks else None
    cells = len(options.tasks) * (len(options.rates or RATES) + len(options.rules) * len(options.seeds))
    with measure.progress(cells) as advance:
        for name in options.tasks:
            assert data is not None
            found = list(tune(options, name, data, advance))
            rate = max(found, key=lambda row: row["score"])["rate"] if found else (options.rates or RATES)[0]
            for seed in options.seeds:
                for rule in options.rules:
                    advance(f"{name}, {rule}, seed {seed}")
                    rows.append(train(data, Cell(name, rule, seed, rate, rounds_of(options, name))))
            tried += found
    machine = measure.machine() if options.tasks or not before else before[0]["machine"]
    return {"machine": machine, "tuning": tried, "rows": rows}


# --- what is shown ---------------------------------------------------------------------------------------------------


def line(rule: str, some: Sequence[Row], dense: Mapping[int, float]) -> list[str]:
    def mean(key: str) -> float:
        return statistics.fmean(row[key] for row in some)

    apart = [row["score"] - dense[row["seed"]] for row in some if row["seed"] in dense and rule != "FedAvg"]
    return [
        some[0]["task"], rule, f"{100 * mean('score'):.2f}", f"{100 * statistics.fmean(apart):+.2f}" if apart else "",
        " ".join(f"{100 * one:+.2f}" for one in apart), f"{mean('up') / 1e6:.3f}", f"{mean('down') / 1e6:.3f}",
        f"{mean('fewer_up'):,.1f}", f"{mean('fewer_down'):,.1f}", f"{mean('cpu_seconds'):.0f}",
    ]  # fmt: skip


def show(result: Row) -> str:
    headers = ["task", "rule", "accuracy %", "against FedAvg", "by seed", "MB up", "MB down", "× fewer up",
               "× fewer down", "CPU s"]  # fmt: skip
    lines = []
    for name in SETTINGS:
        mine = [row for row in result["rows"] if row["task"] == name]
        dense = {row["seed"]: row["score"] for row in mine if row["rule"] == "FedAvg"}
        found = {rule: [row for row in mine if row["rule"] == rule] for rule in RULES}
        lines += [line(rule, some, dense) for rule, some in found.items() if some]
    about = [describe(name, result) for name in SETTINGS if any(row["task"] == name for row in result["rows"])]
    rules = [f"{name}: up {rule.up}, down {rule.down}, {dict(rule.settings)}" for name, rule in RULES.items()]
    return "\n".join([measure.machine_line(result["machine"]), *about, *rules, "", table(headers, lines)])


def describe(name: str, result: Row) -> str:
    setting, rows = SETTINGS[name], [row for row in result["rows"] if row["task"] == name]
    seeds = " ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
    tried = ", ".join(f"{row['rate']:g}: {100 * row['score']:.2f}" for row in result["tuning"] if row["task"] == name)
    what = f"{name}: MNIST, {rows[0]['parameters']:,} parameters, {setting.what}, {rows[0]['rounds']} rounds of "
    return (f"{what}{setting.local_steps} steps of {setting.batch} images; seeds {seeds}; rate {rows[0]['rate']:g} "
            f"(FedAvg's, tried: {tried or 'no other'})")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(parse_rules(__doc__, SETTINGS, RULES, argv), run, show, draw)


if __name__ == "__main__":
    sys.exit(main())
