"""What compression costs in accuracy behind momentum and Adam: `benchmarks/accuracy.py --data FOLDER`.

Four ranks are threads of this process (see training.py); with AdamW the rate rises for a tenth of the steps before it
falls. Every rule trains at the rate that is dense training's best of `--rates`: none of them is tuned. Parameters of
fewer than 1,024 elements travel dense.

dense      no compression
residual   error feedback; the momentum, or Adam's β1, stays in the optimizer behind it
dgc        momentum correction; with AdamW, error feedback and β1 = 0
gmc        global momentum compression (SGD only)
ours       with SGD, dgc with a ratio that falls as 1/t, the same on average, one threshold for the whole model, and
           what waits following the learning rate (follow_rate=True); with AdamW, the same with error feedback and
           β1 = 0
longer     ours at the smallest ratio with `--longer` times the steps

"to 90 %": steps until the training loss, a moving mean, has fallen by 90 % of what dense's falls in all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import training
from accuracy_picture import RULES, draw, groups
from accuracy_tasks import TASKS
from script import add_arguments, run_script
from torch import nn
from training import Comparison, Row

import sparsewire as sw
from sparsewire.lab.arguments import count, share
from sparsewire.lab.tables import table
from sparsewire.lab.tasks.task import MOMENTUM, Task
from sparsewire.training.schedule import SchemeSchedule, Settings, falling_ratio


@dataclass(frozen=True)
class Cell(training.Cell):
    """One training."""

    ratio: float

    @property
    def task(self) -> Task:
        return TASKS[self.name]

    @property
    def fits(self) -> bool:
        return self.rule not in ("dense", "residual")

    def settings(self, model: nn.Module) -> Settings:
        ours = self.rule in ("ours", "longer")
        held = (ours or self.rule in ("dgc", "gmc")) and not self.task.adam
        memory = f"{'gmc' if self.rule == 'gmc' else 'dgc'}(momentum={MOMENTUM})" if held else "residual"
        scheme = sw.scheme(f"topk({self.ratio}) | memory={memory}")
        falling = falling_ratio(self.steps, self.ratio) if ours else None
        schedule = SchemeSchedule(scheme, self.steps if self.rule == "dense" else 0, falling)
        return Settings(schedule, seed=self.seed, select_per="model" if ours else "parameter", follow_rate=ours)

    def facts(self, model: nn.Module) -> Row:
        return {**super().facts(model), "ratio": None if self.rule == "dense" else self.ratio}


def plan(options: argparse.Namespace, name: str, rate: float, seed: int) -> Iterator[Cell]:
    """Dense first, which the others are compared with."""
    steps = options.steps or TASKS[name].steps
    yield Cell(name, "dense", seed, rate, steps, options.ratios[0])
    for rule in options.rules:
        if rule != "dense" and not (rule == "gmc" and TASKS[name].adam):
            yield from (Cell(name, rule, seed, rate, steps, ratio) for ratio in options.ratios)
    if options.longer > 1:
        yield Cell(name, "longer", seed, rate, options.longer * steps, min(options.ratios))


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


ACCURACY = Comparison(TASKS, plan, compared)


def line(key: tuple[str, str, float | None], some: Sequence[Row]) -> list[str]:
    task, rule, ratio = key
    means = {name: statistics.fmean(row[name] for row in some) for name in ("score", "difference", "bytes", "fewer")}
    reached = [row["to_90"] for row in some if row["to_90"] is not None]
    steps = f"{statistics.fmean(reached):.0f}" if len(reached) == len(some) else f"{len(reached)} of {len(some)} did"
    by_seed = " ".join(ACCURACY.points(task, row["difference"], "+") for row in some) if rule != "dense" else ""
    difference = ACCURACY.points(task, means["difference"], "+") if rule != "dense" else ""
    score = ACCURACY.points(task, means["score"])
    return [task, f"{ratio:.1%}" if ratio else "", rule, score, difference, by_seed, steps,
            f"{means['bytes'] / 1e6:.2f}", f"{means['fewer']:.0f}"]  # fmt: skip


def show(result: Row) -> str:
    headers = ["task", "ratio", "rule", "score", "against dense", "by seed", "to 90 %", "MB a rank", "× fewer"]
    lines = [line(key, some) for key, some in groups(result["rows"]).items()]
    return "\n".join([*ACCURACY.about(result), "", table(headers, lines)])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_arguments(parser, TASKS)
    rules = [rule for rule in RULES if rule != "longer"]
    parser.add_argument("--rules", nargs="+", choices=rules, default=rules, help="dense is always trained")
    parser.add_argument("--ratios", nargs="+", type=share, default=[0.01, 0.001], help="default: 1%% 0.1%%")
    parser.add_argument("--longer", type=count, default=1, metavar="N", help="ours with N times the steps as well")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(parse(argv), ACCURACY.run, show, draw)


if __name__ == "__main__":
    sys.exit(main())
