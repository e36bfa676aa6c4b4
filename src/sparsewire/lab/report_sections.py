"""The sections of the report on trainings: each is "" where the results have nothing for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from .curves import smooth, thinned
from .report_data import CLOSE, Group, Setting, by_setting, plain_of, target_score
from .report_page import Links, Number, Value, figure, figures, html_table, paragraph, section
from .scores import HIGHER, UNITS, shown
from .svg import Line, Mark, axis, compact, plot
from .tables import number
from .tables import table as text_table

LATE = "not reached"


def amount(nbytes: float) -> Number:
    return Number(f"{compact(nbytes)}B", nbytes)


def seconds(value: float) -> str:
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.1f} s"


def score_cell(group: Group, plain: Group | None = None) -> Number:
    """The score, or how much it differs from plain DDP's."""
    if group.score is None or (plain is not None and plain.score is None):
        return Number("", None)
    if plain is None:
        return Number(shown(group.kind, group.score), group.score)
    assert plain.score is not None
    difference = group.score - plain.score
    return Number("" if group is plain else shown(group.kind, difference, "+"), difference)


def legend(groups: Sequence[Group]) -> list[tuple[int, str]]:
    return list(dict.fromkeys((group.colour, group.name) for group in groups))


# --- the headline ----------------------------------------------------------------------------------------------------


HEADLINE = [
    "workload", "links", "ranks", "way", "step", "× faster", "bytes a step", "× fewer", "score", "against DDP", "seeds",
    "lines",
]  # fmt: skip


def headline(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    kinds = {group.kind: UNITS[group.kind] for group in groups if group.score is not None}
    words = "A step's time is the median after the warm-up, of local steps the mean; bytes are those that the kernel "
    words += "counts on a rank's TCP connections. × is against plain DDP on the same links. "
    words += "".join(f"{kind}: {unit}. " for kind, unit in kinds.items())
    return section("Headline", paragraph(words), html_table(HEADLINE, _headline(groups), "all ways at all settings"))


def headline_text(groups: Sequence[Group]) -> str:
    """The same table for a terminal."""
    rows = [[cell.text if isinstance(cell, Number) else str(cell) for cell in row[:-1]] for row in _headline(groups)]
    return text_table(HEADLINE[:-1], rows)


def _headline(groups: Sequence[Group]) -> list[list[Value]]:
    return [_headline_row(group, plain_of(some)) for some in by_setting(groups).values() for group in some]


def _headline_row(group: Group, plain: Group | None) -> list[Value]:
    setting, step, sent = group.setting, group.typical("step_ms"), group.typical("bytes_per_step")
    faster = None if plain is None else plain.typical("step_ms") / step
    fewer = None if plain is None or not sent else plain.typical("bytes_per_step") / sent
    return [
        setting.workload, setting.rate, Number(str(setting.ranks), setting.ranks), group.name,
        Number(seconds(step / 1e3), step), Number(number(faster), faster),
        amount(sent), Number(number(fewer, 1), fewer),
        score_cell(group), Number("", None) if plain is None else score_cell(group, plain),
        Number(str(len(group.runs)), len(group.runs)), Links(group.links),
    ]  # fmt: skip


# --- time to accuracy ------------------------------------------------------------------------------------------------


def time_to_accuracy(groups: Sequence[Group]) -> str:
    shown_some = [_score_over_time(setting, some) for setting, some in by_setting(groups).items() if _tested(some)]
    rows = [row for some in by_setting(groups).values() for row in _target_rows(some)]
    if not shown_some:
        return ""
    words = f"Seconds of training, without the tests, until a test comes within {CLOSE:.0%} of plain DDP's last score."
    headers = ["setting", "way", "target", "seconds", "× sooner", "lines"]
    table = html_table(headers, rows, "seconds to the target") if rows else ""
    return section("Time to accuracy", paragraph(words), table, figures(shown_some))


def _tested(groups: Sequence[Group]) -> bool:
    return any(len(run.history()) > 1 for group in groups for run in group.runs)


def _target_rows(groups: Sequence[Group]) -> list[list[Value]]:
    target, plain = target_score(groups), plain_of(groups)
    if target is None or plain is None or not _tested(groups):
        return []
    first = plain.seconds_to(target)
    rows: list[list[Value]] = []
    for group in groups:
        spent = group.seconds_to(target)
        sooner = None if first is None or spent is None else first / spent
        cell = Number(LATE if spent is None else seconds(spent), spent)
        rows.append([str(group.setting), group.name, Number(shown(group.kind, target), target), cell,
                     Number(number(sooner), sooner), Links(group.links)])  # fmt: skip
    return rows


def _score_over_time(setting: Setting, groups: Sequence[Group]) -> str:
    kind, lines, rows = groups[0].kind, [], list[list[Value]]()
    for group in groups:
        for run in group.runs:
            marks = [Mark(spent, score, f"{group.name}: {shown(kind, score)} after {seconds(spent)}, step {step:g}",
                          run.place) for step, spent, score in run.history()]  # fmt: skip
            lines.append(Line(group.colour, marks))
            rows += [_history_row(group, run.place, run.label, *one) for one in run.history()]
    x = axis("seconds of training", [mark.x for line in lines for mark in line.marks], write=compact)
    y = axis(UNITS[kind].partition(":")[0], [mark.y for line in lines for mark in line.marks], write=_writer(kind))
    table = html_table(["way", "step", "seconds", "score", "line"], rows, f"score by time, {setting}")
    picture = plot(f"Score against seconds of training, {setting}: {_best_first(groups)}", lines, x, y)
    return figure(str(setting), picture, legend(groups), table)


def _history_row(group: Group, place: str, label: str, step: float, spent: float, score: float) -> list[Value]:
    return [group.name, Number(f"{step:g}", step), Number(seconds(spent), spent),
            Number(shown(group.kind, score), score), Links([(place, label)])]  # fmt: skip


def _writer(kind: str) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.3g}") if kind in HIGHER else compact


def _best_first(groups: Sequence[Group]) -> str:
    """In words, what a picture of scores shows."""
    scored = [group for group in groups if group.score is not None]
    order = sorted(scored, key=lambda group: group.score or 0.0, reverse=groups[0].kind in HIGHER)
    return ", ".join(f"{group.name} {shown(group.kind, group.score or 0.0)}" for group in order)


# --- accuracy against bytes ------------------------------------------------------------------------------------------


def accuracy_by_bytes(groups: Sequence[Group]) -> str:
    scored = [group for group in groups if group.score is not None and group.sent > 0]
    some = [_score_by_bytes(setting, of) for setting, of in by_setting(scored).items()]
    words = "Each way by the bytes that a rank sends in the whole training. Up and to the left is better for accuracy, "
    words += "down and to the left for losses."
    return section("Accuracy against bytes", paragraph(words), figures(some)) if some else ""


def _score_by_bytes(setting: Setting, groups: Sequence[Group]) -> str:
    kind, lines, rows = groups[0].kind, [], list[list[Value]]()
    for group in groups:
        assert group.score is not None
        title = f"{group.name}: {shown(kind, group.score)}, {compact(group.sent)}B"
        lines.append(Line(group.colour, [Mark(group.sent, group.score, title, group.runs[0].place)], joined=False))
        rows.append([group.name, amount(group.sent), score_cell(group), Links(group.links)])
    x = axis("bytes sent by a rank", [line.marks[0].x for line in lines], log=True)
    y = axis(UNITS[kind].partition(":")[0], [line.marks[0].y for line in lines], write=_writer(kind))
    table = html_table(["way", "bytes", "score", "lines"], rows, f"score and bytes, {setting}")
    picture = plot(f"Score against bytes sent, {setting}: {_best_first(groups)}", lines, x, y)
    return figure(str(setting), picture, legend(groups), table)


# --- loss curves -----------------------------------------------------------------------------------------------------


def loss_curves(groups: Sequence[Group]) -> str:
    trained = [group for group in groups if len(group.runs[0].record["loss"]) >= 20]
    some = [_losses(setting, of) for setting, of in by_setting(trained).items()]
    words = "Training loss, the mean over the ranks, smoothed over a fortieth of the steps; a line for each seed."
    return section("Loss curves", paragraph(words), figures(some)) if some else ""


def _losses(setting: Setting, groups: Sequence[Group]) -> str:
    lines, rows = [], list[list[Value]]()
    for group in groups:
        for run in group.runs:
            curve = smooth(run.record["loss"])
            marks = [Mark(step + 1, loss) for step, loss in thinned(curve)]
            lines.append(Line(group.colour, marks, marked=False))
            last = statistics.fmean(run.record["loss"][-20:])
            rows.append([group.name, Number(f"{curve[0]:.3f}", curve[0]), Number(f"{last:.3f}", last),
                         Links([(run.place, run.label)])])  # fmt: skip
    x = axis("step", [mark.x for line in lines for mark in line.marks])
    y = axis("training loss", [mark.y for line in lines for mark in line.marks])
    table = html_table(["way", "first", "mean of the last 20", "line"], rows, f"training loss, {setting}")
    ends = ", ".join(f"{row[0]} {row[2].text}" for row in rows if isinstance(row[2], Number))
    return figure(str(setting), plot(f"Training loss by step, {setting}; at the end: {ends}", lines, x, y),
                  legend(groups), table)  # fmt: skip
