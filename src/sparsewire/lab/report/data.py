"""Results as the report needs them: runs that differ in nothing but the seed together, beside plain DDP's."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..results import Record, key_of
from ..tasks.scores import HIGHER

PLAIN = "ddp"
CLOSE = 0.02  # of plain DDP's score, which is to be reached
DIVERGED = "diverged"
IDENTITY = ("workload", "method", "rate", "ranks", "ranks_per_node", "seed", "data")  # all else of a cell are details
TIMING = ("steps", "warmup", "tests")  # may differ between methods of which no score is compared
CHOICE = ("learning_rate", "batch", "steps")  # by which plain DDP is chosen where there are several of it
Details = tuple[tuple[str, Any], ...]


class Style(NamedTuple):
    """The colour of a line is the same in all pictures; its dashes and marks are by its order in one."""

    colour: int
    order: int


class Setting(NamedTuple):
    """A workload, and the links and ranks that it is trained on; methods are compared at the same setting."""

    workload: str
    rate: str
    ranks: int
    per_node: int

    def __str__(self) -> str:
        return f"{self.workload}, {self.ranks} ranks{a_node(self.per_node)}, {self.rate}"


def a_node(ranks: int) -> str:
    return f", {ranks} a node" if ranks > 1 else ""


class Point(NamedTuple):
    """A score on the way, or at the end; None if the training had diverged."""

    step: int
    seconds: float
    score: float | None


@dataclass(frozen=True)
class Run:
    """A line of results; `anchor` is where the page shows it."""

    anchor: str
    label: str
    record: Record

    @property
    def key(self) -> str:
        return str(self.record.get("key") or key_of(self.record["cell"]))

    @property
    def setting(self) -> Setting:
        cell = self.record["cell"]
        return Setting(cell["workload"], cell["rate"], cell["ranks"], cell["ranks_per_node"])

    @property
    def details(self) -> Details:
        return tuple(sorted((name, value) for name, value in self.record["cell"].items() if name not in IDENTITY))

    @property
    def method(self) -> str:
        return str(self.record["cell"]["method"])

    @property
    def failed(self) -> bool:
        return bool(self.record.get("error"))

    @property
    def validated(self) -> bool:
        """Whether the last test is on the validation part, too; in older results it is the score, on the test part."""
        history = self.record["history"]
        return bool(history) and history[-1][0] >= len(self.record["step_seconds"])

    def history(self) -> list[Point]:
        """The tests on the way and the one at the end."""
        points = [Point(*test) for test in self.record["history"]]
        if self.record["score_kind"] and not self.validated:
            steps = self.record["step_seconds"]
            points.append(Point(len(steps), sum(steps), self.record["score"]))
        return points


@dataclass(frozen=True)
class Group:
    """The runs of a method at a setting that differ in the seed only; `differences` sets it apart from other groups."""

    setting: Setting
    method: str
    method_name: str
    differences: str
    style: Style
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        return f"{self.method_name}, {self.differences}" if self.differences else self.method_name

    @property
    def details(self) -> dict[str, Any]:
        return dict(self.runs[0].details)

    def typical(self, key: str) -> float:
        return statistics.median(run.record[key] for run in self.runs)

    @property
    def sent(self) -> float:
        """Bytes of a rank in the whole training."""
        return statistics.fmean(statistics.fmean(run.record["sent"]) for run in self.runs)

    @property
    def score(self) -> float | None:
        return _mean([run.record["score"] for run in self.runs])

    @property
    def last(self) -> float | None:
        """The last score of the history."""
        return _mean([run.history()[-1].score if run.history() else None for run in self.runs])

    @property
    def diverged(self) -> str:
        """Words that say how many of the runs were tested but have no score in the end."""
        lost = sum(run.record["score"] is None for run in self.runs) if self.runs[0].record["score_kind"] else 0
        return DIVERGED if lost == len(self.runs) else f"{lost} of {len(self.runs)} {DIVERGED}" if lost else ""

    @property
    def kind(self) -> str:
        return str(self.runs[0].record["score_kind"])

    @property
    def links(self) -> list[tuple[str, str]]:
        return [(run.anchor, run.label) for run in self.runs]

    def seconds_to(self, target: float) -> float | None:
        """Seconds of training until a test met the target, the median over the seeds; None if a run never met it."""
        better: Callable[[float], bool] = lambda score: (  # noqa: E731
            score >= target if self.kind in HIGHER else score <= target
        )
        tests = [[test for test in run.history() if test.score is not None and better(test.score)] for run in self.runs]
        return statistics.median(passed[0].seconds for passed in tests) if all(tests) else None


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if len(known) == len(scores) else None


# --- groups ----------------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """The setting, method and details that the runs of a group have in common."""

    setting: Setting
    method: str
    details: Details


Alike = Mapping[Key, Sequence[Run]]


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """Groups in the order of the file, but plain DDP first at every setting; a method has one colour everywhere."""
    done = [run for run in runs if not run.failed]
    names = _names(done)
    methods = sorted(names, key=lambda method: method != PLAIN)
    alike = _alike(done, methods)
    lines = sorted(
        dict.fromkeys((key.method, _differences(key, alike)) for key in alike), key=lambda line: methods.index(line[0])
    )
    groups: list[Group] = []
    for key, together in alike.items():
        differences, index = _differences(key, alike), sum(group.setting == key.setting for group in groups)
        style = Style(lines.index((key.method, differences)), index)
        groups.append(Group(key.setting, key.method, names[key.method], differences, style, together))
    return groups


def _alike(runs: Sequence[Run], methods: Sequence[str]) -> Alike:
    settings = list(dict.fromkeys(run.setting for run in runs))
    groups: dict[Key, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (settings.index(run.setting), methods.index(run.method))):
        groups.setdefault(Key(run.setting, run.method, run.details), []).append(run)
    return groups


def _differences(key: Key, alike: Alike) -> str:
    """The details that differ between groups of the workload. Without scores steps and tests count only between those
    of the same method and setting, as a method that takes longer may well be timed for fewer steps."""
    peers = [other for other in alike if other.setting.workload == key.setting.workload]
    scored = any(run.record["score_kind"] for other in peers for run in alike[other])
    words = []
    for name, value in key.details:
        wide = name not in TIMING or (scored and name == "steps")
        others = (dict(other.details).get(name) for other in peers if wide or other[:2] == key[:2])
        words += [f"{name} {value}"] if any(other != value for other in others) else []
    return ", ".join(words)


def _names(runs: Sequence[Run]) -> dict[str, str]:
    """Methods by their text: the name that they were given last, unless another method has it too."""
    given = {run.method: run.method for run in runs}
    given |= {run.method: str(run.record["name"]) for run in runs if run.record["name"] != run.method}
    shared = {name for name in given.values() if list(given.values()).count(name) > 1}
    return {method: method if name in shared else name for method, name in given.items()}


def by_setting(groups: Iterable[Group]) -> dict[Setting, list[Group]]:
    settings: dict[Setting, list[Group]] = {}
    for group in groups:
        settings.setdefault(group.setting, []).append(group)
    return settings


def baseline_of(groups: Sequence[Group], group: Group) -> Group | None:
    """Plain DDP at the group's setting, which it is compared with; with the same details if there are several."""

    def same(plain: Group) -> list[bool]:
        return [plain is group, *(plain.details.get(name) == group.details.get(name) for name in CHOICE)]

    return max((other for other in groups if other.method == PLAIN), key=same, default=None)


def target_score(plain: Group | None) -> float | None:
    """The score that counts as reached: close to plain DDP's score in the end."""
    if plain is None or plain.last is None:
        return None
    return plain.last * (1 - CLOSE if plain.kind in HIGHER else 1 + CLOSE)
