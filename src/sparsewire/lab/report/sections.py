"""The sections of the report on trainings: none where the results have nothing for it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..curves import FAR, bounded, pieces, smooth, thinned
from ..tables import number
from ..tasks.scores import HIGHER, UNITS, shown
from .charts import Axis, Line, Mark, legend, plot
from .data import CLOSE, DIVERGED, Group, Point, Run, Setting, Style, baseline_of, by_setting, target_score
from .headline import amount, score_cell
from .page import Figure, Links, Number, Section, Table, Value
from .units import compact, seconds

LATE = "not reached"


# --- time to accuracy ------------------------------------------------------------------------------------------------


def time_to_accuracy(groups: Sequence[Group]) -> Section | None:
    settings = by_setting(groups)
    figures = [_score_over_time(setting, compared) for setting, compared in settings.items() if _tested(compared)]
    rows = [row for compared in settings.values() for row in _target_rows(compared)]
    if not figures:
        return None
    words = "Seconds of training, without the tests, until a score on the validation data comes within "
    words += f"{CLOSE:.0%} of plain DDP's last one."
    if not all(_validated(group) for group in groups if _tested([group])):
        words += " Results of an older sparsewire have the score on the test data as their last."
    headers = ["setting", "method", "target", "seconds", "× sooner", "lines"]
    table = Table(headers, rows, "seconds to the target") if rows else None
    return Section("Time to accuracy", words, table, figures)


def _tested(groups: Sequence[Group]) -> bool:
    return any(len(run.history()) > 1 for group in groups for run in group.runs)


def _validated(group: Group) -> bool:
    return all(run.validated for run in group.runs)


def _target_rows(groups: Sequence[Group]) -> list[list[Value]]:
    if not _tested(groups):
        return []
    return [row for group in groups for row in _target_row(group, baseline_of(groups, group))]


def _target_row(group: Group, plain: Group | None) -> list[list[Value]]:
    """None, where plain DDP gives no target."""
    target = target_score(plain)
    if target is None or plain is None:
        return []
    first, spent = plain.seconds_to(target), group.seconds_to(target)
    sooner = None if first is None or spent is None else first / spent
    cell = Number(LATE if spent is None else seconds(spent), spent)
    return [[str(group.setting), group.name, Number(shown(group.kind, target), target), cell,
             Number(number(sooner), sooner), Links(group.links)]]  # fmt: skip


def _score_over_time(setting: Setting, groups: Sequence[Group]) -> Figure:
    kind = groups[0].kind
    lines = [line for group in groups for run in group.runs for line in _history_lines(group, run)]
    rows = [_history_row(group, run, test) for group in groups for run in group.runs for test in run.history()]
    x = Axis("seconds of training", log=all(mark.x > 0 for line in lines for mark in line.marks))
    y = Axis(_unit(kind, all(map(_validated, groups))))
    table = Table(["method", "step", "seconds", "score", "line"], rows, f"score by time, {setting}")
    ends = {group.name: group.last for group in groups}
    picture = plot(f"Score against seconds of training, {setting}: {_best_first(kind, ends)}", lines, x, y)
    return Figure(str(setting), picture, legend(_names(groups)), table)


def _history_lines(group: Group, run: Run) -> list[Line]:
    """One, or more with gaps where a test has no score."""
    steps = {test.seconds: test.step for test in run.history()}

    def mark(spent: float, score: float) -> Mark:
        words = f"{group.name}: {shown(group.kind, score)} after {seconds(spent)}, step {steps[spent]}"
        return Mark(spent, _percent(group.kind, score), words, run.anchor)

    curves = pieces((test.seconds, test.score) for test in run.history())
    return [Line(group.style, [mark(*test) for test in piece]) for piece in curves]


def _history_row(group: Group, run: Run, test: Point) -> list[Value]:
    score = DIVERGED if test.score is None else shown(group.kind, test.score)
    return [group.name, Number(str(test.step), test.step), Number(seconds(test.seconds), test.seconds),
            Number(score, test.score), Links([(run.anchor, run.label)])]  # fmt: skip


def _unit(kind: str, validation: bool = False) -> str:
    """
    >>> _unit("loss"), _unit("loss", validation=True), _unit("hits", validation=True)
    ('test loss in nats', 'validation loss in nats', 'validation hit rate in %')
    """
    unit = UNITS[kind].partition(":")[0]
    return f"validation {unit.removeprefix('test ')}" if validation else unit


def _percent(kind: str, score: float) -> float:
    """The score in the unit of its axis."""
    return 100 * score if kind in HIGHER else score


def _names(groups: Sequence[Group]) -> list[tuple[Style, str]]:
    return [(group.style, group.name) for group in groups]


def _best_first(kind: str, scores: Mapping[str, float | None]) -> str:
    """The scores that a picture shows, in words."""
    known = [(score, name) for name, score in scores.items() if score is not None]
    order = sorted(known, key=lambda one: one[0], reverse=kind in HIGHER)
    lost = [f"{name} {DIVERGED}" for name, score in scores.items() if score is None]
    return ", ".join([*(f"{name} {shown(kind, score)}" for score, name in order), *lost])


# --- accuracy against bytes ------------------------------------------------------------------------------------------


def accuracy_by_bytes(groups: Sequence[Group]) -> Section | None:
    scored = [group for group in groups if group.score is not None and group.sent > 0]
    figures = [_score_by_bytes(setting, compared) for setting, compared in by_setting(scored).items()]
    words = (
        "Each method by the bytes that a rank sends in the whole training. Up and to the left is better for accuracy, "
    )
    words += "down and to the left for losses."
    return Section("Accuracy against bytes", words, figures=figures) if figures else None


def _score_by_bytes(setting: Setting, groups: Sequence[Group]) -> Figure:
    kind, lines, rows = groups[0].kind, [], list[list[Value]]()
    for group in groups:
        assert group.score is not None
        title = f"{group.name}: {shown(kind, group.score)}, {compact(group.sent)}B"
        mark = Mark(group.sent, _percent(kind, group.score), title, group.runs[0].anchor)
        lines.append(Line(group.style, [mark], joined=False))
        rows.append([group.name, amount(group.sent), score_cell(group), Links(group.links)])
    table = Table(["method", "bytes", "score", "lines"], rows, f"score and bytes, {setting}")
    scores = _best_first(kind, {group.name: group.score for group in groups})
    x, y = Axis("bytes sent by a rank", log=True), Axis(_unit(kind))
    picture = plot(f"Score against bytes sent, {setting}: {scores}", lines, x, y)
    return Figure(str(setting), picture, legend(_names(groups), "mark"), table)


# --- loss curves -----------------------------------------------------------------------------------------------------


def loss_curves(groups: Sequence[Group]) -> Section | None:
    """Loss curves of the workloads that have a score; those that train on noise are only timed."""
    scored = [group for group in groups if group.runs[0].record["score_kind"]]
    trained = [group for group in scored if len(group.runs[0].record["loss"]) >= 20]
    figures = [_losses(setting, compared) for setting, compared in by_setting(trained).items()]
    words = "Training loss, the mean over the ranks, smoothed over a fortieth of the steps; a line for each seed. "
    words += f"There is none where a training has diverged, to no number or to over {FAR} times its first loss."
    return Section("Loss curves", words, figures=figures) if figures else None


def _losses(setting: Setting, groups: Sequence[Group]) -> Figure:
    lines, rows = [], list[list[Value]]()
    for group in groups:
        for run in group.runs:
            curve, end = smooth(run.record["loss"]), run.record["loss"][-20:]
            lines += [Line(group.style, [Mark(step + 1, loss) for step, loss in piece], marked=False)
                      for piece in pieces(thinned(bounded(curve)))]  # fmt: skip
            last = None if None in end else statistics.fmean(end)
            rows.append([group.name, _loss_cell(curve[0]), _loss_cell(last), Links([(run.anchor, run.label)])])
    table = Table(["method", "first", "mean of the last 20", "line"], rows, f"training loss, {setting}")
    ends = ", ".join(f"{row[0]} {row[2].text}" for row in rows if isinstance(row[2], Number))
    picture = plot(f"Training loss by step, {setting}; at the end: {ends}", lines, Axis("step"), Axis("training loss"))
    return Figure(str(setting), picture, legend(_names(groups), "stroke"), table)


def _loss_cell(loss: float | None) -> Number:
    return Number(DIVERGED if loss is None else f"{loss:.3f}", loss)
