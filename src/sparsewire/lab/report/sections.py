"""The sections of the report on trainings: each is "" where the results have nothing for it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ..curves import FAR, bounded, pieces, smooth, thinned
from ..net.network import bits_per_second
from ..tables import number
from ..tables import table as text_table
from ..tasks.scores import HIGHER, UNITS, shown
from .data import CLOSE, DIVERGED, Group, Point, Run, Setting, by_setting, plain_of, target_score
from .page import Links, Number, Value, figure, figures, html_table, paragraph, section
from .svg import Line, Mark, Style, Write, axis, compact, plot

LATE = "not reached"


def amount(nbytes: float) -> Number:
    return Number(f"{compact(nbytes)}B", nbytes)


def seconds(value: float) -> str:
    """
    >>> seconds(0.00024), seconds(0.0024), seconds(0.00997), seconds(0.043), seconds(0.9997), seconds(13.07)
    ('0.24 ms', '2.4 ms', '10 ms', '43 ms', '1.0 s', '13.1 s')
    """
    if value >= 0.9995:
        return f"{value:,.1f} s"
    if value < 0.000995:
        return f"{value * 1e3:.2g} ms"
    return f"{value * 1e3:.{int(value < 0.00995)}f} ms"


def score_cell(group: Group) -> Number:
    if group.score is None:
        return Number(group.diverged, None)
    return Number(shown(group.kind, group.score), group.score)


def difference_cell(group: Group, plain: Group | None) -> Number:
    """How much the score differs from plain DDP's."""
    if plain is None or group.score is None or plain.score is None:
        return Number("", None)
    difference = group.score - plain.score
    return Number("" if group is plain else shown(group.kind, difference, "+"), difference)


def legend(groups: Sequence[Group]) -> list[tuple[Style, str]]:
    return [(group.style, group.name) for group in groups]


# --- the headline ----------------------------------------------------------------------------------------------------


PER_NODE = "ranks a node"  # a column only where nodes have several
HEADLINE = [
    "workload", "links", "ranks", PER_NODE, "method", "step", "× faster", "bytes a step", "× fewer", "score",
    "against DDP", "seeds", "lines",
]  # fmt: skip


def headline(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    kinds = {group.kind: UNITS[group.kind] for group in groups if group.score is not None}
    words = "A step's time is the median after the warm-up, of local steps the mean; bytes are those that the kernel "
    words += "counts on a rank's TCP connections. × is against plain DDP on the same links. "
    words += "".join(f"{kind}: {unit}. " for kind, unit in kinds.items())
    return section("Headline", paragraph(words), html_table(*_headline(groups), "all methods at all settings"))


def headline_text(groups: Sequence[Group]) -> str:
    """The same table for a terminal."""
    headers, rows = _headline(groups)
    return text_table(headers[:-1], [[cell.text if isinstance(cell, Number) else str(cell) for cell in row[:-1]]
                                     for row in rows])  # fmt: skip


def _headline(groups: Sequence[Group]) -> tuple[list[str], list[list[Value]]]:
    rows = [_headline_row(group, plain_of(some, group)) for some in by_setting(groups).values() for group in some]
    several = any(group.setting.per_node > 1 for group in groups)
    kept = [place for place, header in enumerate(HEADLINE) if several or header != PER_NODE]
    return [HEADLINE[place] for place in kept], [[row[place] for place in kept] for row in rows]


def _headline_row(group: Group, plain: Group | None) -> list[Value]:
    setting, step, sent = group.setting, group.typical("step_ms"), group.typical("bytes_per_step")
    faster = None if plain is None else plain.typical("step_ms") / step
    fewer = None if plain is None or not sent else plain.typical("bytes_per_step") / sent
    return [
        setting.workload, Number(setting.rate, bits_per_second(setting.rate), words=True),
        Number(str(setting.ranks), setting.ranks), Number(str(setting.per_node), setting.per_node), group.name,
        Number(seconds(step / 1e3), step), Number(number(faster), faster),
        amount(sent), Number(number(fewer, 1), fewer),
        score_cell(group), difference_cell(group, plain),
        Number(str(len(group.runs)), len(group.runs)), Links(group.links),
    ]  # fmt: skip


# --- time to accuracy ------------------------------------------------------------------------------------------------


def time_to_accuracy(groups: Sequence[Group]) -> str:
    shown_some = [_score_over_time(setting, some) for setting, some in by_setting(groups).items() if _tested(some)]
    rows = [row for some in by_setting(groups).values() for row in _target_rows(some)]
    if not shown_some:
        return ""
    words = "Seconds of training, without the tests, until a score on the validation data comes within "
    words += f"{CLOSE:.0%} of plain DDP's last one."
    if not all(_validated(group) for group in groups if _tested([group])):
        words += " Results of an older sparsewire have the score on the test data as their last."
    headers = ["setting", "method", "target", "seconds", "× sooner", "lines"]
    table = html_table(headers, rows, "seconds to the target") if rows else ""
    return section("Time to accuracy", paragraph(words), table, figures(shown_some))


def _tested(groups: Sequence[Group]) -> bool:
    return any(len(run.history()) > 1 for group in groups for run in group.runs)


def _validated(group: Group) -> bool:
    return all(run.validated for run in group.runs)


def _target_rows(groups: Sequence[Group]) -> list[list[Value]]:
    if not _tested(groups):
        return []
    return [row for group in groups for row in _target_row(group, plain_of(groups, group))]


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


def _score_over_time(setting: Setting, groups: Sequence[Group]) -> str:
    kind = groups[0].kind
    lines = [line for group in groups for run in group.runs for line in _history_lines(group, run)]
    rows = [_history_row(group, run, one) for group in groups for run in group.runs for one in run.history()]
    spent = [mark.x for line in lines for mark in line.marks]
    x = axis("seconds of training", spent, log=min(spent, default=1.0) > 0)
    y = axis(_unit(kind, all(map(_validated, groups))), [mark.y for line in lines for mark in line.marks],
             write=_writer(kind))  # fmt: skip
    table = html_table(["method", "step", "seconds", "score", "line"], rows, f"score by time, {setting}")
    ends = {group.name: group.last for group in groups}
    picture = plot(f"Score against seconds of training, {setting}: {_best_first(kind, ends)}", lines, x, y)
    return figure(str(setting), picture, legend(groups), table)


def _history_lines(group: Group, run: Run) -> list[Line]:
    """One, or more with gaps where a test has no score."""
    steps = {one.seconds: one.step for one in run.history()}
    return [
        Line(group.style, [
            Mark(spent, score, f"{group.name}: {shown(group.kind, score)} after {seconds(spent)}, step {steps[spent]}",
                 run.place) for spent, score in piece
        ])
        for piece in pieces((one.seconds, one.score) for one in run.history())
    ]  # fmt: skip


def _history_row(group: Group, run: Run, test: Point) -> list[Value]:
    score = DIVERGED if test.score is None else shown(group.kind, test.score)
    return [group.name, Number(str(test.step), test.step), Number(seconds(test.seconds), test.seconds),
            Number(score, test.score), Links([(run.place, run.label)])]  # fmt: skip


def _unit(kind: str, validation: bool = False) -> str:
    """
    >>> _unit("loss"), _unit("loss", validation=True), _unit("hits", validation=True)
    ('test loss in nats', 'validation loss in nats', 'validation hit rate in %')
    """
    unit = UNITS[kind].partition(":")[0]
    return f"validation {unit.removeprefix('test ')}" if validation else unit


def _writer(kind: str) -> Write:
    return (lambda value, digits: f"{100 * value:.{digits}g}") if kind in HIGHER else compact


def _best_first(kind: str, scores: Mapping[str, float | None]) -> str:
    """In words, what a picture of scores shows."""
    known = [(score, name) for name, score in scores.items() if score is not None]
    order = sorted(known, key=lambda one: one[0], reverse=kind in HIGHER)
    lost = [f"{name} {DIVERGED}" for name, score in scores.items() if score is None]
    return ", ".join([*(f"{name} {shown(kind, score)}" for score, name in order), *lost])


# --- accuracy against bytes ------------------------------------------------------------------------------------------


def accuracy_by_bytes(groups: Sequence[Group]) -> str:
    scored = [group for group in groups if group.score is not None and group.sent > 0]
    some = [_score_by_bytes(setting, of) for setting, of in by_setting(scored).items()]
    words = (
        "Each method by the bytes that a rank sends in the whole training. Up and to the left is better for accuracy, "
    )
    words += "down and to the left for losses."
    return section("Accuracy against bytes", paragraph(words), figures(some)) if some else ""


def _score_by_bytes(setting: Setting, groups: Sequence[Group]) -> str:
    kind, lines, rows = groups[0].kind, [], list[list[Value]]()
    for group in groups:
        assert group.score is not None
        title = f"{group.name}: {shown(kind, group.score)}, {compact(group.sent)}B"
        lines.append(Line(group.style, [Mark(group.sent, group.score, title, group.runs[0].place)], joined=False))
        rows.append([group.name, amount(group.sent), score_cell(group), Links(group.links)])
    x = axis("bytes sent by a rank", [line.marks[0].x for line in lines], log=True)
    y = axis(_unit(kind), [line.marks[0].y for line in lines], write=_writer(kind))
    table = html_table(["method", "bytes", "score", "lines"], rows, f"score and bytes, {setting}")
    scores = _best_first(kind, {group.name: group.score for group in groups})
    picture = plot(f"Score against bytes sent, {setting}: {scores}", lines, x, y)
    return figure(str(setting), picture, legend(groups), table, ["mark"])


# --- loss curves -----------------------------------------------------------------------------------------------------


def loss_curves(groups: Sequence[Group]) -> str:
    """Of what is trained to be good at something; noise only takes its time."""
    scored = [group for group in groups if group.runs[0].record["score_kind"]]
    trained = [group for group in scored if len(group.runs[0].record["loss"]) >= 20]
    some = [_losses(setting, of) for setting, of in by_setting(trained).items()]
    words = "Training loss, the mean over the ranks, smoothed over a fortieth of the steps; a line for each seed. "
    words += f"There is none where a training has diverged, to no number or to over {FAR} times its first loss."
    return section("Loss curves", paragraph(words), figures(some)) if some else ""


def _losses(setting: Setting, groups: Sequence[Group]) -> str:
    lines, rows = [], list[list[Value]]()
    for group in groups:
        for run in group.runs:
            curve, end = smooth(run.record["loss"]), run.record["loss"][-20:]
            lines += [Line(group.style, [Mark(step + 1, loss) for step, loss in piece], marked=False)
                      for piece in pieces(thinned(bounded(curve)))]  # fmt: skip
            last = None if None in end else statistics.fmean(end)
            rows.append([group.name, _loss_cell(curve[0]), _loss_cell(last), Links([(run.place, run.label)])])
    x = axis("step", [mark.x for line in lines for mark in line.marks])
    y = axis("training loss", [mark.y for line in lines for mark in line.marks])
    table = html_table(["method", "first", "mean of the last 20", "line"], rows, f"training loss, {setting}")
    ends = ", ".join(f"{row[0]} {row[2].text}" for row in rows if isinstance(row[2], Number))
    return figure(str(setting), plot(f"Training loss by step, {setting}; at the end: {ends}", lines, x, y),
                  legend(groups), table, ["stroke"])  # fmt: skip


def _loss_cell(loss: float | None) -> Number:
    return Number(DIVERGED if loss is None else f"{loss:.3f}", loss)
