"""What the scripts share that compare rules by training: ranks as threads, the choice of the rate, the whole run.

The ranks, four unless a cell says otherwise, are threads of this process, each with its own replica of model and
optimizer, its own batches and its own `Averager`: the rules as a training runs them, but no DDP and no network. All
rules of a seed start from the same weights, see the same batches (drawn with replacement) and make the same number of
steps, while the rate falls linearly to 0. The rate is dense training's best, at a seed of its own, by a part of the
data that is not reported.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import script
import torch
from torch import nn

from sparsewire import Sparse
from sparsewire.comm import Communicator, run_ranks
from sparsewire.core import host
from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.lab import measure
from sparsewire.lab.curves import smooth
from sparsewire.lab.tasks.scores import HIGHER, UNITS, shown
from sparsewire.lab.tasks.task import Data, Part, Task, evaluate, loss_of
from sparsewire.planning.cost.volume import Tally
from sparsewire.torch.ddp.bucket import to_coo
from sparsewire.torch.optimizers import fit_optimizers, read_optimizers
from sparsewire.training.averager import Averager
from sparsewire.training.schedule import Settings

RANKS, TUNING_SEED = 4, 0
Row = dict[str, Any]


class NotFinite(InputError):
    """A training met a gradient with NaN or infinity."""


@dataclass(frozen=True)
class Cell(script.Cell, ABC):
    """One training."""

    steps: int
    ranks: int = RANKS

    @property
    @abstractmethod
    def task(self) -> Task: ...

    @abstractmethod
    def settings(self, model: nn.Module) -> Settings: ...

    @property
    @abstractmethod
    def fits(self) -> bool:
        """Whether the optimizer is told of the scheme's memory."""

    def given(self, gradient: Sparse) -> Sparse | Array:
        """A sparse gradient as it is handed over; an array travels dense."""
        return gradient

    def drawn_from(self, data: Data, rank: int) -> Part:
        """The examples that a rank draws its batches from."""
        return data.train

    def tested(self, part: Part) -> Part:
        """The examples of a part that are tested."""
        return part

    def facts(self, model: nn.Module) -> Row:
        return {"task": self.name, "rule": self.rule, "seed": self.seed, "rate": self.rate, "steps": self.steps}


# --- a training ------------------------------------------------------------------------------------------------------


class Rank:
    """One rank's replica and all it needs for a step."""

    def __init__(self, comm: Communicator, model: nn.Module, cell: Cell) -> None:
        self.model, self.cell, settings = model, cell, cell.settings(model)
        self.named = dict(model.named_parameters())
        self.optimizer = cell.task.optimizer(model, cell.rate)
        fit = fit_optimizers(read_optimizers(self.optimizer), settings, self.named) if cell.fits else None
        self.averager = Averager(comm, replace(settings, momenta=fit.momenta, rates=fit.rates) if fit else settings)
        if fit:
            fit.attach(lambda: self.averager.was_sparse, str)

    def step(self, step: int, part: Part) -> float:
        for group in self.optimizer.param_groups:
            share = group.get("share", 1.0)  # of the rate
            group["lr"] = share * self.cell.task.rate_at(self.cell.rate, step / self.cell.steps)
        self.optimizer.zero_grad()
        loss = loss_of(self.model, part)
        loss.backward()  # type: ignore[no-untyped-call]
        self._average()
        self.optimizer.step()
        return float(loss.detach())

    def _average(self) -> None:
        gradients = {name: one.grad for name, one in self.named.items() if one.grad is not None}
        given = {name: self._given(gradient) for name, gradient in gradients.items()}
        self.averager.put(given)
        if not self.averager.finish():
            raise NotFinite(f"{self.cell} met a gradient that is not finite")
        for name, gradient in gradients.items():
            self.named[name].grad = as_gradient(self.averager.sparse_means.get(name, given[name]), gradient)

    def _given(self, gradient: torch.Tensor) -> Sparse | Array:
        tensor = host.to_host(gradient)
        return self.cell.given(tensor) if isinstance(tensor, Sparse) else tensor.flat


def as_gradient(mean: Sparse | Array, gradient: torch.Tensor) -> torch.Tensor:
    """A mean as a tensor of the gradient's kind: of a sparse one, the rows that are not zero."""
    if not gradient.is_sparse:
        assert not isinstance(mean, Sparse)
        return torch.from_numpy(mean).view(gradient.shape)
    if isinstance(mean, Sparse) and mean.width > 1:
        return to_coo(mean, gradient)
    rows = (mean.flat() if isinstance(mean, Sparse) else mean).reshape(len(gradient), -1)
    some = np.flatnonzero(rows.any(axis=1))
    return to_coo(Sparse(some, rows[some].reshape(-1), tuple(gradient.shape), width=rows.shape[1]), gradient)


def train_rank(comm: Communicator, model: nn.Module, data: Data, cell: Cell) -> tuple[nn.Module, list[float], Row]:
    torch.set_num_threads(1)
    tally, replica = Tally(comm), copy.deepcopy(model).train()
    cell.task.prepare(replica)
    rank = Rank(tally, replica, cell)
    draw = torch.Generator().manual_seed(1000 * cell.seed + comm.rank)
    x, y = cell.drawn_from(data, comm.rank)
    losses = []
    for step in range(cell.steps):
        chosen = torch.randint(len(x), (cell.task.batch,), generator=draw)
        losses.append(rank.step(step, (x[chosen], y[chosen])))
    counts = rank.averager.stats()["counts"]
    return replica, losses, {"bytes": comm.bytes_sent, "wire": tally.total.sent, "ways": counts}


def train(data: Data, cell: Cell, tuning: bool = False) -> Row:
    """What came of a training; batch norms are those of rank 0, as with DDP."""
    torch.manual_seed(cell.seed)
    model, start = cell.task.model(data), time.process_time()
    ranks = run_ranks(cell.ranks, lambda comm: train_rank(comm, model, data, cell), timeout=600)
    losses = [statistics.fmean(some) for some in zip(*(found[1] for found in ranks), strict=True)]
    score = evaluate(ranks[0][0], cell.tested(data.valid if tuning else data.test), cell.task.score)
    sent = {key: statistics.fmean(found[2][key] for found in ranks) for key in ("bytes", "wire")}
    seconds = round(time.process_time() - start, 1)
    return {**cell.facts(model), "score": score, "curve": smooth(losses), **sent, "ways": ranks[0][2]["ways"],
            "cpu_seconds": seconds, "parameters": sum(one.numel() for one in model.parameters())}  # fmt: skip


# --- all of them -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The tasks; the cells of a task, rate and seed, dense training first; what a row says beside dense's."""

    tasks: Mapping[str, Task]
    plan: Callable[[argparse.Namespace, str, float, int], Iterator[Cell]]
    compared: Callable[[Row, Row], Row]

    def run(self, options: argparse.Namespace) -> Row:
        before = [json.loads(path.read_text(encoding="utf-8")) for path in options.add]
        tried, rows = ([row for one in before for row in one[key]] for key in ("tuning", "rows"))
        cells = {name: len(options.seeds) * len([*self.plan(options, name, 1.0, 0)]) for name in options.tasks}
        with measure.progress(sum(len(self._rates(options, name)) + count for name, count in cells.items())) as advance:
            for name in options.tasks:
                more_tried, more = self._measured(options, name, advance)
                tried, rows = tried + more_tried, rows + more
        machine = measure.machine() if options.tasks or not before else before[0]["machine"]
        return {"machine": machine, "ranks": RANKS, "tuning": tried, "rows": rows}

    def _measured(
        self, options: argparse.Namespace, name: str, advance: measure.Advance
    ) -> tuple[list[Row], list[Row]]:
        """All trainings of a task: those for its rate, and those that are reported."""
        data = self.tasks[name].load(options.data)
        tried, rows = self._tune(options, name, data, advance), []
        for seed in options.seeds:
            dense: Row | None = None
            for cell in self.plan(options, name, self._best_rate(options, name, tried), seed):
                advance(str(cell))
                row = train(data, cell)
                dense = dense or row
                rows.append(self.compared(row, dense))
        return tried, rows

    def _tune(self, options: argparse.Namespace, name: str, data: Data, advance: measure.Advance) -> list[Row]:
        """Dense training at each rate; nothing if there is no choice."""
        rates = self._rates(options, name)
        found = []
        for rate in rates if len(rates) > 1 else ():
            cell = next(self.plan(options, name, rate, TUNING_SEED))
            advance(str(cell))
            found.append(train(data, cell, tuning=True))
        return found

    def _rates(self, options: argparse.Namespace, name: str) -> Sequence[float]:
        return options.rates or self.tasks[name].rates

    def _best_rate(self, options: argparse.Namespace, name: str, tried: Sequence[Row]) -> float:
        if not tried:
            return float(self._rates(options, name)[0])
        pick = max if self.tasks[name].score in HIGHER else min
        return float(pick(tried, key=lambda row: row["score"])["rate"])

    # --- what is shown ---

    def points(self, name: str, value: float, sign: str = "") -> str:
        """A score, or a difference of two, as it is reported."""
        return shown(self.tasks[name].score, value, sign)

    def describe(self, name: str, result: Row) -> str:
        task, rows = self.tasks[name], [row for row in result["rows"] if row["task"] == name]
        seeds = " ".join(str(seed) for seed in dict.fromkeys(row["seed"] for row in rows))
        tried = [row for row in result["tuning"] if row["task"] == name]
        shown = ", ".join(f"{row['rate']:g}: {self.points(name, row['score'])}" for row in tried)
        first = rows[0]
        what = f"{task.what}, {first['parameters']:,} parameters, {first['steps']} steps of {result['ranks']} × "
        return (f"{name}: {what}{task.batch}; {UNITS[task.score]}; seeds {seeds}; rate {first['rate']:g} "
                f"(tried: {shown or 'no other'})")  # fmt: skip

    def about(self, result: Row) -> list[str]:
        """The machine, and a line for each task that was trained."""
        trained = [name for name in self.tasks if any(row["task"] == name for row in result["rows"])]
        return [measure.machine_line(result["machine"]), *(self.describe(name, result) for name in trained)]
