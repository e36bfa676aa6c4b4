"""Results as the report needs them: runs that differ in nothing but the seed together, beside plain DDP's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .results import Record
from .scores import HIGHER
from .svg import COLOURS

PLAIN = "ddp"
CLOSE = 0.02  # of plain DDP's score, which is to be reached


class Setting(NamedTuple):
    """What is trained, and where: what ways are compared at."""

    workload: str
    rate: str
    ranks: int
    per_node: int

    def __str__(self) -> str:
        nodes = f", {self.per_node} a node" if self.per_node > 1 else ""
        return f"{self.workload}, {self.ranks} ranks{nodes}, {self.rate}"


@dataclass(frozen=True)
class Run:
    """A line of results; `place` is where the page shows it."""

    place: str
    label: str
    record: Record

    @property
    def setting(self) -> Setting:
        cell = self.record["cell"]
        return Setting(cell["workload"], cell["rate"], cell["ranks"], cell["ranks_per_node"])

    @property
    def way(self) -> str:
        return str(self.record["cell"]["way"])

    @property
    def failed(self) -> bool:
        return bool(self.record.get("error"))

    def history(self) -> list[tuple[float, float, float]]:
        """(steps, seconds, score) of the tests on the way and of the one at the end."""
        found = [(step, seconds, score) for step, seconds, score in self.record["history"]]
        if self.record["score"] is not None:
            steps = self.record["step_seconds"]
            found.append((len(steps), sum(steps), self.record["score"]))
        return found


@dataclass(frozen=True)
class Group:
    """The runs of a way at a setting, one for each seed."""

    setting: Setting
    way: str
    name: str
    colour: int
    runs: Sequence[Run]

    def typical(self, key: str) -> float:
        return statistics.median(run.record[key] for run in self.runs)

    @property
    def sent(self) -> float:
        """Bytes of a rank in the whole training."""
        return statistics.fmean(statistics.fmean(run.record["sent"]) for run in self.runs)

    @property
    def score(self) -> float | None:
        scores = [run.record["score"] for run in self.runs if run.record["score"] is not None]
        return statistics.fmean(scores) if len(scores) == len(self.runs) else None

    @property
    def kind(self) -> str:
        return str(self.runs[0].record["score_kind"])

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(run.place, run.label) for run in self.runs]

    def seconds_to(self, target: float) -> float | None:
        """Of training until a test met the target, the median over the seeds; None if one never did."""
        better: Callable[[float], bool] = lambda score: (  # noqa: E731
            score >= target if self.kind in HIGHER else score <= target
        )
        first = [next((s for _, s, score in run.history() if better(score)), None) for run in self.runs]
        met = [seconds for seconds in first if seconds is not None]
        return statistics.median(met) if len(met) == len(first) else None


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """In the order of the file, but plain DDP first at every setting; a way has one colour in all of the page."""
    done = [run for run in runs if not run.failed]
    names = _names(done)
    ways = sorted(names, key=lambda way: way != PLAIN)
    settings = dict.fromkeys(run.setting for run in done)
    found = []
    for setting in settings:
        for place, way in enumerate(ways):
            some = [run for run in done if (run.setting, run.way) == (setting, way)]
            if some:
                found.append(Group(setting, way, names[way], place % COLOURS, some))
    return found


def _names(runs: Sequence[Run]) -> dict[str, str]:
    """Ways by their text: the name that they were given, unless another way has it too."""
    given = {run.way: str(run.record["name"]) for run in runs}
    shared = {name for name in given.values() if list(given.values()).count(name) > 1}
    return {way: way if name in shared else name for way, name in given.items()}


def by_setting(groups: Iterable[Group]) -> dict[Setting, list[Group]]:
    found: dict[Setting, list[Group]] = {}
    for group in groups:
        found.setdefault(group.setting, []).append(group)
    return found


def plain_of(groups: Sequence[Group]) -> Group | None:
    return next((group for group in groups if group.way == PLAIN), None)


def target_score(groups: Sequence[Group]) -> float | None:
    """What counts as reached: plain DDP's score in the end, or close to it."""
    plain = plain_of(groups)
    if plain is None or plain.score is None:
        return None
    return plain.score * (1 - CLOSE if plain.kind in HIGHER else 1 + CLOSE)
