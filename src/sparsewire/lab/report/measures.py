"""The sections of the report on steps and codecs: time by stage, bytes against ranks, rate and distortion."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ..curves import front
from .charts import Axis, Line, Mark, Stack, legend, plot, stacked
from .data import Group, Run, Setting, Style, a_node, by_setting
from .headline import amount
from .page import Figure, Links, Number, Section, Table, Value
from .units import seconds

PARTS = {"forward": "forward", "backward": "backward and waiting for the exchange", "update": "update"}
RANGE = (1e-4, 0.6)  # relative errors that are drawn


# --- time by stage ---------------------------------------------------------------------------------------------------


def stages(groups: Sequence[Group]) -> Section | None:
    if not groups:
        return None
    words = (
        "The mean step after the warm-up. The upper bar of a method is the thread that trains; the lower one, where "
    )
    words += "there is a second, is sparsewire's own thread, which works while backward goes on."
    figures = [_stages(setting, compared) for setting, compared in by_setting(groups).items()]
    return Section("Step time by stage", words, figures=figures)


def mean_of(group: Group, key: str) -> dict[str, float]:
    """Milliseconds by stage, the mean over the seeds."""
    names = dict.fromkeys(name for run in group.runs for name in run.record[key])
    return {name: statistics.fmean(run.record[key].get(name, 0.0) for run in group.runs) for name in names}


def _stages(setting: Setting, groups: Sequence[Group]) -> Figure:
    bars = [(group, key, milliseconds) for group in groups for key in ("parts_ms", "stages_ms")
            if (milliseconds := mean_of(group, key))]  # fmt: skip
    names = list(dict.fromkeys(name for _, _, stages in bars for name, spent in stages.items() if spent > 0))
    styles = {name: Style(index, index) for index, name in enumerate(names)}
    stacks = [_stack(group, key, milliseconds, styles) for group, key, milliseconds in bars]
    rows = [row for group, key, milliseconds in bars for row in _stage_rows(group, milliseconds)]
    table = Table(["method", "stage", "time a step", "lines"], rows, f"time by stage, {setting}")
    totals = ", ".join(f"{group.name} {seconds(group.typical('step_ms') / 1e3)}" for group in groups)
    shown = [(styles[name], PARTS.get(name, name)) for name in names]
    picture = stacked(f"Time of a step by stage, {setting}: {totals}", stacks)
    return Figure(str(setting), picture, legend(shown, "block"), table)


def _stack(group: Group, key: str, milliseconds: Mapping[str, float], styles: Mapping[str, Style]) -> Stack:
    parts = [(styles[name], spent, f"{group.name}, {PARTS.get(name, name)}: {seconds(spent / 1e3)}")
             for name, spent in milliseconds.items() if spent > 0]  # fmt: skip
    name = group.name if key == "parts_ms" else "↳ its own thread"
    short = name if len(name) <= 60 else f"{name[:59]}…"
    return Stack(short, parts, seconds(sum(milliseconds.values()) / 1e3), group.runs[0].anchor)


def _stage_rows(group: Group, milliseconds: Mapping[str, float]) -> list[list[Value]]:
    return [[group.name, PARTS.get(name, name), Number(seconds(spent / 1e3), spent), Links(group.links)]
            for name, spent in milliseconds.items() if spent > 0]  # fmt: skip


# --- bytes against ranks ---------------------------------------------------------------------------------------------


def bytes_by_ranks(groups: Sequence[Group]) -> Section | None:
    """Bytes by ranks, for workloads that were trained on several numbers of ranks."""
    by_load: dict[str, dict[str, list[Group]]] = {}
    for group in groups:
        workload, rate, _, per_node = group.setting
        if group.typical("bytes_per_step") > 0:
            by_load.setdefault(f"{workload}{a_node(per_node)}, {rate}", {}).setdefault(group.method, []).append(group)
    figures = []
    for title, methods in by_load.items():
        several = [of for of in methods.values() if len({group.setting.ranks for group in of}) > 1]
        if several:
            figures.append(_ranks(title, several))
    words = (
        "What a rank sends in a step. With an allgather it grows with the ranks; a ring's all_reduce stays below twice "
    )
    words += "the gradient."
    return Section("Bytes against ranks", words, figures=figures) if figures else None


def _ranks(title: str, methods: Sequence[Sequence[Group]]) -> Figure:
    lines, rows, names = [], list[list[Value]](), []
    for index, groups in enumerate(methods):
        marks, style = [], Style(groups[0].style.colour, index)
        for group in sorted(groups, key=lambda one: one.setting.ranks):
            sent, ranks = group.typical("bytes_per_step"), group.setting.ranks
            marks.append(Mark(ranks, sent, f"{group.name}, {ranks} ranks: {amount(sent).text}", group.runs[0].anchor))
            rows.append([group.name, Number(str(ranks), ranks), amount(sent), Links(group.links)])
        lines.append(Line(style, marks))
        names.append((style, groups[0].method_name))
    every = [mark for line in lines for mark in line.marks]
    x = Axis("ranks", log=True, at=sorted({mark.x for mark in every}))
    table = Table(["method", "ranks", "bytes a step", "lines"], rows, f"bytes by ranks, {title}")
    said = "; ".join(mark.title for mark in every)
    picture = plot(
        f"Bytes a step against ranks, {title}: {said}", lines, x, Axis("bytes a rank sends in a step", log=True)
    )
    return Figure(title, picture, legend(names), table)


# --- rate and distortion ---------------------------------------------------------------------------------------------


def rate_distortion(runs: Sequence[Run]) -> Section | None:
    """Pictures of the results that `sparsewire bench rates --json` writes."""
    figures = [_rates(run, item) for run in runs for item in run.record["inputs"]]
    words = "Bits per value, maps included, against the relative error of the values; the best settings of every codec "
    words += "that was measured. Down and to the left is better."
    return Section("Rate and distortion", words, figures=figures) if figures else None


def _rates(run: Run, item: Mapping[str, Any]) -> Figure:
    curves = list(dict.fromkeys(point["curve"] for point in item["points"]))
    lines, rows, names = [], [], []
    for index, curve in enumerate(curves):
        best = front([point for point in item["points"] if point["curve"] == curve])
        drawn = [point for point in best if RANGE[0] <= point["error"] <= RANGE[1]]
        if drawn:
            marks = [Mark(point["error"], point["bits"], _point(point), run.anchor) for point in drawn]
            lines.append(Line(Style(index, index), marks))
            names.append((Style(index, index), curve))
        rows += [[point["codec"], Number(f"{point['error']:.4f}", point["error"]),
                  Number(f"{point['bits']:.2f}", point["bits"]), Links([(run.anchor, run.label)])]
                 for point in drawn]  # fmt: skip
    title = f"{item['input']}: {item['count']:,} values"
    table = Table(["codec", "error", "bits/value", "line"], rows, f"rate and distortion, {title}")
    x, y = Axis("relative error", log=True), Axis("bits per value")
    picture = plot(f"Bits per value against relative error, {title}; {', '.join(curves)}", lines, x, y)
    return Figure(title, picture, legend(names), table)


def _point(point: Mapping[str, Any]) -> str:
    return f"{point['codec']}: {point['bits']:.2f} bits, error {point['error']:.4f}"
