"""The sections of the report on steps and codecs: time by stage, bytes against ranks, rate and distortion."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..curves import front
from .data import Group, Run, Setting, a_node, by_setting
from .page import Links, Number, Value, figure, figures, html_table, paragraph, section
from .sections import amount, seconds
from .svg import Line, Mark, Stack, Style, axis, plot, stacked

PARTS = {"forward": "forward", "backward": "backward and waiting for the exchange", "update": "update"}
RANGE = (1e-4, 0.6)  # relative errors that are drawn


# --- time by stage ---------------------------------------------------------------------------------------------------


def stages(groups: Sequence[Group]) -> str:
    if not groups:
        return ""
    words = (
        "The mean step after the warm-up. The upper bar of a method is the thread that trains; the lower one, where "
    )
    words += "there is a second, is sparsewire's own thread, which works while backward goes on."
    return section("Step time by stage", paragraph(words),
                   figures([_stages(setting, some) for setting, some in by_setting(groups).items()]))  # fmt: skip


def mean_of(group: Group, key: str) -> dict[str, float]:
    """Milliseconds by stage, the mean over the seeds."""
    names = dict.fromkeys(name for run in group.runs for name in run.record[key])
    return {name: statistics.fmean(run.record[key].get(name, 0.0) for run in group.runs) for name in names}


def _stages(setting: Setting, groups: Sequence[Group]) -> str:
    bars = [(group, key, found) for group in groups for key in ("parts_ms", "stages_ms")
            if (found := mean_of(group, key))]  # fmt: skip
    names = list(dict.fromkeys(name for _, _, found in bars for name, spent in found.items() if spent > 0))
    styles = {name: Style(place, place) for place, name in enumerate(names)}
    stacks = [_stack(group, key, found, styles) for group, key, found in bars]
    rows = [row for group, key, found in bars for row in _stage_rows(group, found)]
    table = html_table(["method", "stage", "time a step", "lines"], rows, f"time by stage, {setting}")
    totals = ", ".join(f"{group.name} {seconds(group.typical('step_ms') / 1e3)}" for group in groups)
    shown = [(styles[name], PARTS.get(name, name)) for name in names]
    picture = stacked(f"Time of a step by stage, {setting}: {totals}", stacks)
    return figure(str(setting), picture, shown, table, ["block"])


def _stack(group: Group, key: str, found: Mapping[str, float], styles: Mapping[str, Style]) -> Stack:
    parts = [(styles[name], spent, f"{group.name}, {PARTS.get(name, name)}: {seconds(spent / 1e3)}")
             for name, spent in found.items() if spent > 0]  # fmt: skip
    name = group.name if key == "parts_ms" else "↳ its own thread"
    short = name if len(name) <= 60 else f"{name[:59]}…"
    return Stack(short, parts, seconds(sum(found.values()) / 1e3), group.runs[0].place)


def _stage_rows(group: Group, found: Mapping[str, float]) -> list[list[Value]]:
    return [[group.name, PARTS.get(name, name), Number(seconds(spent / 1e3), spent), Links(group.links)]
            for name, spent in found.items() if spent > 0]  # fmt: skip


# --- bytes against ranks ---------------------------------------------------------------------------------------------


def bytes_by_ranks(groups: Sequence[Group]) -> str:
    """Of workloads that were trained on several numbers of ranks."""
    by_load: dict[str, dict[str, list[Group]]] = {}
    for group in groups:
        workload, rate, _, per_node = group.setting
        if group.typical("bytes_per_step") > 0:
            by_load.setdefault(f"{workload}{a_node(per_node)}, {rate}", {}).setdefault(group.method, []).append(group)
    some = []
    for title, methods in by_load.items():
        several = [of for of in methods.values() if len({group.setting.ranks for group in of}) > 1]
        if several:
            some.append(_ranks(title, several))
    words = (
        "What a rank sends in a step. With an allgather it grows with the ranks; a ring's all_reduce stays below twice "
    )
    words += "the gradient."
    return section("Bytes against ranks", paragraph(words), figures(some)) if some else ""


def _ranks(title: str, methods: Sequence[Sequence[Group]]) -> str:
    lines, rows, names = [], list[list[Value]](), []
    for place, groups in enumerate(methods):
        marks, style = [], Style(groups[0].style.colour, place)
        for group in sorted(groups, key=lambda one: one.setting.ranks):
            sent, ranks = group.typical("bytes_per_step"), group.setting.ranks
            marks.append(Mark(ranks, sent, f"{group.name}, {ranks} ranks: {amount(sent).text}", group.runs[0].place))
            rows.append([group.name, Number(str(ranks), ranks), amount(sent), Links(group.links)])
        lines.append(Line(style, marks))
        names.append((style, groups[0].method_name))
    every = [mark for line in lines for mark in line.marks]
    counts = sorted({mark.x for mark in every})
    x = replace(axis("ranks", counts, log=True), at=counts)
    y = axis("bytes a rank sends in a step", [mark.y for mark in every], log=True)
    table = html_table(["method", "ranks", "bytes a step", "lines"], rows, f"bytes by ranks, {title}")
    said = "; ".join(mark.title for mark in every)
    return figure(title, plot(f"Bytes a step against ranks, {title}: {said}", lines, x, y), names, table)


# --- rate and distortion ---------------------------------------------------------------------------------------------


def rate_distortion(runs: Sequence[Run]) -> str:
    """Of results that `sparsewire bench rates --json` writes."""
    some = [_rates(run, one) for run in runs for one in run.record["inputs"]]
    words = "Bits per value, maps included, against the relative error of the values; the best settings of every codec "
    words += "that was measured. Down and to the left is better."
    return section("Rate and distortion", paragraph(words), figures(some)) if some else ""


def _rates(run: Run, one: Mapping[str, Any]) -> str:
    curves = list(dict.fromkeys(point["curve"] for point in one["points"]))
    lines, rows, names = [], [], []
    for place, curve in enumerate(curves):
        best = front([point for point in one["points"] if point["curve"] == curve])
        drawn = [point for point in best if RANGE[0] <= point["error"] <= RANGE[1]]
        if drawn:
            marks = [Mark(point["error"], point["bits"], _point(point), run.place) for point in drawn]
            lines.append(Line(Style(place, place), marks))
            names.append((Style(place, place), curve))
        rows += [[point["codec"], Number(f"{point['error']:.4f}", point["error"]),
                  Number(f"{point['bits']:.2f}", point["bits"]), Links([(run.place, run.label)])]
                 for point in drawn]  # fmt: skip
    every = [mark for line in lines for mark in line.marks]
    x, y = axis("relative error", [m.x for m in every], log=True), axis("bits per value", [m.y for m in every])
    title = f"{one['input']}: {one['count']:,} values"
    table = html_table(["codec", "error", "bits/value", "line"], rows, f"rate and distortion, {title}")
    picture = plot(f"Bits per value against relative error, {title}; {', '.join(curves)}", lines, x, y)
    return figure(title, picture, names, table)


def _point(point: Mapping[str, Any]) -> str:
    return f"{point['codec']}: {point['bits']:.2f} bits, error {point['error']:.4f}"
