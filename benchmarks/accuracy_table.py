"""The tables of `benchmarks/accuracy.py`: what each rule loses in each setting, and the worst of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accuracy_rules import DENSE, RULES, SPREADS
from accuracy_tasks import TASKS

from sparsewire.lab import measure
from sparsewire.lab.tables import table
from sparsewire.lab.tasks.scores import HIGHER, UNITS, shown

Record = Mapping[str, Any]
SETTING = ("name", "steps", "ranks", "spread", "factor")
# What may be lost on average over the seeds, and by one of them: points of accuracy, or nats.
LIMITS = {("accuracy", "iid"): (0.003, 0.008), ("accuracy", "classes"): (0.007, None), ("loss", "iid"): (0.02, None)}
DIVERGED = 0.5  # of what dense training's loss falls: less than that
UNTRAINED = 0.9  # of the first loss: where dense training ends above it, nothing is compared


@dataclass(frozen=True)
class Outcome:
    """A rule's training beside dense training of the same seed."""

    record: Record
    dense: Record

    @property
    def difference(self) -> float:
        return float(self.record["score"] - self.dense["score"])

    @property
    def diverged(self) -> bool:
        """Whether it made less than half of dense training's progress."""
        (first, last), losses = self.dense["losses"], self.record["losses"]
        return losses is None or losses[1] > first - DIVERGED * (first - last)

    @property
    def setting(self) -> tuple[Any, ...]:
        return tuple(self.record[name] for name in SETTING)

    @property
    def is_all(self) -> bool:
        return bool(self.record["coverage"] == self.record["steps"])

    @property
    def coverage(self) -> str:
        return "all" if self.is_all else f"{self.record['coverage']:g}"

    @property
    def order(self) -> tuple[Any, ...]:
        name, steps, ranks, spread, factor = self.setting
        coverage = float("inf") if self.is_all else self.record["coverage"]
        return [*TASKS].index(name), steps, coverage, ranks, SPREADS.index(spread), factor


def outcomes(records: Iterable[Record]) -> list[Outcome]:
    """Those of rules beside a dense training that trained."""
    reported = [record for record in records if "rule" in record and not record["tuning"]]
    dense = {_pair(record): record for record in reported if record["rule"] == DENSE and _trained(record)}
    pairs = [Outcome(record, dense[_pair(record)]) for record in reported
             if record["rule"] != DENSE and _pair(record) in dense]  # fmt: skip
    return sorted(pairs, key=lambda one: (one.order, [*RULES].index(one.record["rule"]), one.record["seed"]))


def _pair(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in (*SETTING, "rate", "seed"))


def _trained(dense: Record) -> bool:
    return dense["losses"] is not None and dense["losses"][1] < UNTRAINED * dense["losses"][0]


# --- summaries of several outcomes -----------------------------------------------------------------------------------


def mean(some: Sequence[Outcome]) -> float:
    return statistics.fmean(one.difference for one in some)


def worst(name: str, values: Iterable[float]) -> float:
    return (min if TASKS[name].score in HIGHER else max)(values)


def misses(some: Sequence[Outcome]) -> bool:
    """Whether the seeds of a setting lose more than they may."""
    name, spread = some[0].record["name"], some[0].record["spread"]
    most, by_one = LIMITS[TASKS[name].score, spread]
    sign = -1 if TASKS[name].score in HIGHER else 1
    least = worst(name, (one.difference for one in some))
    return sign * mean(some) > most or (by_one is not None and sign * least > by_one)


def grouped(some: Iterable[Outcome], *names: str) -> dict[tuple[Any, ...], list[Outcome]]:
    """By these facts of their records, and by coverage."""
    found: dict[tuple[Any, ...], list[Outcome]] = {}
    for one in some:
        found.setdefault((*(one.record[name] for name in names), one.coverage), []).append(one)
    return found


# --- tables ----------------------------------------------------------------------------------------------------------


def show(records: Sequence[Record]) -> str:
    found = outcomes(records)
    if not found:
        return "no rule was trained beside dense training yet: name --tasks"
    machines = [record["machine"] for record in records if "machine" in record]
    lines = [measure.machine_line(machines[-1])] if machines else []
    by_task = [[one for one in found if one.record["name"] == name] for name in TASKS]
    tables = [worst_table(found), *(settings_table(some) for some in by_task if some)]
    return "\n\n".join(["\n".join([*lines, *about(records)]), *tables])


def about(records: Sequence[Record]) -> list[str]:
    """A line for each task: what is trained, and the rates that were chosen."""
    trained = [record for record in records if "rule" in record]
    names = [name for name in TASKS if any(record["name"] == name for record in trained)]
    return [_described(name, [record for record in trained if record["name"] == name]) for name in names]


def _described(name: str, records: Sequence[Record]) -> str:
    task, dense = TASKS[name], [record for record in records if record["rule"] == DENSE and not record["tuning"]]
    rates = dict.fromkeys(
        f"{record['ranks']} {record['spread']} {record['rate']:g}" for record in dense if record["factor"] == 1
    )
    steps = "/".join(str(steps) for steps in sorted({record["steps"] for record in records}))
    seeds = " ".join(str(seed) for seed in sorted({record["seed"] for record in dense}))
    return (f"{name}: {task.what}, {steps} steps of {task.batch} a rank; {UNITS[task.score]}; seeds {seeds}; "
            f"best rates: {', '.join(rates)}")  # fmt: skip


def worst_table(found: Sequence[Outcome]) -> str:
    headers = ["task", "coverage", "rule", "settings", "runs", "mean", "worst setting", "worst seed", "over the limit",
               "diverged"]  # fmt: skip
    return table(headers, [_worst_line(key, some) for key, some in grouped_by_rule(found).items()])


def grouped_by_rule(found: Sequence[Outcome]) -> dict[tuple[Any, ...], list[Outcome]]:
    """By task, rule and coverage, the coverages of a task one after the other."""
    groups = grouped(found, "name", "rule")
    return dict(sorted(groups.items(), key=lambda item: (*item[1][0].order[:3], [*RULES].index(item[0][1]))))


def _worst_line(key: tuple[Any, ...], some: Sequence[Outcome]) -> list[str]:
    name, rule, coverage = key
    kind, settings = TASKS[name].score, [*grouped(some, *SETTING).values()]
    figures = (mean(some), worst(name, map(mean, settings)), worst(name, (one.difference for one in some)))
    missed, diverged = sum(map(misses, settings)), sum(one.diverged for one in some)
    return [name, coverage, rule, str(len(settings)), str(len(some)), *(shown(kind, value, "+") for value in figures),
            f"{missed} of {len(settings)}", str(diverged or "")]  # fmt: skip


def settings_table(found: Sequence[Outcome]) -> str:
    """A line for each setting of a task, a column for each rule: the mean over the seeds, and the worst of them."""
    rules = [rule for rule in RULES if any(one.record["rule"] == rule for one in found)]
    headers = ["task", "ranks", "spread", "rate", "coverage", "seeds", "dense", *rules]
    return table(headers, [_setting_line(key, some, rules) for key, some in grouped(found, *SETTING).items()])


def _setting_line(key: tuple[Any, ...], some: Sequence[Outcome], rules: Sequence[str]) -> list[str]:
    name, _, ranks, spread, factor, coverage = key
    by_rule = {rule: [one for one in some if one.record["rule"] == rule] for rule in rules}
    scores = {one.record["seed"]: one.dense["score"] for one in some}
    dense = shown(TASKS[name].score, statistics.fmean(scores.values()))
    return [name, str(ranks), spread, f"{factor:g} ×", coverage, str(len(scores)), dense,
            *(_of_seeds(name, one) for one in by_rule.values())]  # fmt: skip


def _of_seeds(name: str, some: Sequence[Outcome]) -> str:
    if not some:
        return ""
    least = worst(name, (one.difference for one in some))
    diverged = sum(one.diverged for one in some)
    text = f"{shown(TASKS[name].score, mean(some), '+')} ({shown(TASKS[name].score, least, '+')})"
    return f"{text} {diverged} diverged" if diverged else text
