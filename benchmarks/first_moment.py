"""AdamW with a first moment behind error feedback: `benchmarks/first_moment.py --data FOLDER -o FILE.jsonl --betas …`.

A β1 is a number, or goes by the delay D of error feedback in steps, the mean over the ranks after the step before:
β/(1 − β) = max(0, 0.9/(1 − 0.9) − S · D), so that both delays add up to AdamW's. Parameters that travel dense keep 0.9.

share=S  D = (1 − k̂)/k̂, where k̂ follows the share of the energy that was sent, as for `memory=gain`
wait=S   D = the sum of |what waits| / the sum of |what was sent|

Each training of the transformer on characters is a line of FILE.jsonl; `accuracy.py` trains it dense, and with β1 = 0.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import training
from accuracy_rules import RULES, Cell
from accuracy_tasks import TASKS
from torch import nn

from sparsewire.comm import Communicator
from sparsewire.lab import results
from sparsewire.lab.arguments import count, output_file
from sparsewire.training.residuals.gain import FOLLOW

STEPS, BETA, LEAST = 250, 0.9, 1024  # AdamW's β1; elements of a parameter that travels sparse


@dataclass(frozen=True)
class Moment(Cell):
    """A training whose β1 for parameters that travel sparse is chosen here."""

    beta: str = "0"

    @property
    def fits(self) -> bool:
        return False

    def beta_at(self, delay: float) -> float:
        _, given, number = self.beta.rpartition("=")
        held = max(0.0, BETA / (1 - BETA) - float(number) * delay)
        return held / (1 + held) if given else float(number)


class Rank(training.Rank):
    """A rank that measures its delay. No rank is two steps ahead, so all of them find the same mean."""

    delays: ClassVar[defaultdict[int, dict[int, float]]] = defaultdict(dict)  # by step and rank

    def __init__(self, comm: Communicator, model: nn.Module, cell: Moment) -> None:
        super().__init__(comm, model, cell)
        self.rank, self.share, self.moment, self.count = comm.rank, 0.0, cell, 0
        self.sparse = {name: one for name, one in self.named.items() if one.numel() >= LEAST}
        group, held = self.optimizer.param_groups[0], set(self.sparse.values())
        parts = [[one for one in group["params"] if (one in held) == sparse] for sparse in (True, False)]
        self.optimizer.param_groups = [{**group, "params": part} for part in parts]

    def _average(self) -> None:
        gradients = {name: one.grad.numpy().ravel() for name, one in self.sparse.items() if one.grad is not None}
        before = {name: one["residual"] for name, one in self.averager.states.by_name.items()}
        totals = np.concatenate([one + before.get(name, 0) for name, one in gradients.items()])
        super()._average()
        unsent = np.concatenate([self.averager.states.by_name[name]["residual"] for name in gradients])
        self.delays[self.count][self.rank] = self._delay(totals - unsent, unsent, float(np.sum(totals**2)))
        mean = statistics.fmean(self.delays[self.count - 1].values()) if self.count else 0.0
        self.optimizer.param_groups[0]["betas"] = (self.moment.beta_at(mean), 0.999)
        self.count += 1

    def _delay(self, sent: np.ndarray, unsent: np.ndarray, energy: float) -> float:
        now = min(1.0, float(np.sum(sent**2)) / energy)
        self.share = max(now, self.share + FOLLOW * (now - self.share))
        by_share = self.moment.beta.startswith("share")
        return (1 - self.share) / self.share if by_share else float(np.abs(unsent).sum() / np.abs(sent).sum())


def train(cell: Moment, folder: Path) -> dict[str, Any]:
    training.Rank = Rank  # type: ignore[misc,assignment]
    Rank.delays.clear()
    row = training.train(TASKS[cell.name].load(folder), cell)
    delays = [statistics.fmean(Rank.delays[step].values()) for step in range(0, cell.steps, max(1, cell.steps // 10))]
    kept = {"bytes": row["bytes"], "delays": np.round(delays, 2).tolist()}
    return {**cell.record(), "score": round(row["score"], 6), **kept}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path(), metavar="FOLDER", help="with tinyshakespeare.txt")
    add("-o", "--output", type=output_file, default=Path("first_moment.jsonl"), metavar="FILE.jsonl")
    add("--betas", nargs="+", default=["0", "0.5", "wait=2"], metavar="β1", help="a number, share=S or wait=S")
    add("--rule", choices=[rule for rule in RULES if RULES[rule].adam], default="residual+model+falling")
    add("--coverage", type=float, default=20.0)
    add("--ranks", type=count, default=8)
    add("--rate", type=float, default=0.012, help="dense training's best: 0.012 at 8 ranks, 0.003 at 2")
    add("--factors", nargs="+", type=float, default=[1.0, 1.5], help="of that rate")
    add("--seeds", nargs="+", type=count, default=[201])
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    for seed, factor, beta in itertools.product(options.seeds, options.factors, options.betas):
        cell = Moment("text", options.rule, seed, options.rate * factor, STEPS, options.ranks,
                      factor=factor, coverage=options.coverage, beta=beta)  # fmt: skip
        results.append(options.output, train(cell, options.data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
