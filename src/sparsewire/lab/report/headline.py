"""The headline of the report: every method at every setting beside plain DDP, in the page and on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from ..net.network import bits_per_second
from ..tables import number
from ..tables import table as text_table
from ..tasks.scores import UNITS, shown
from .data import Group, baseline_of, by_setting
from .page import Links, Number, Section, Table, Value
from .units import compact, seconds


def amount(nbytes: float) -> Number:
    return Number(f"{compact(nbytes)}B", nbytes)


def score_cell(group: Group) -> Number:
    if group.score is None:
        return Number(group.diverged, None)
    return Number(shown(group.kind, group.score), group.score)


def difference_cell(group: Group, plain: Group | None) -> Number:
    """The difference between the group's score and plain DDP's."""
    if plain is None or group.score is None or plain.score is None:
        return Number("", None)
    difference = group.score - plain.score
    return Number("" if group is plain else shown(group.kind, difference, "+"), difference)


# --- the headline ----------------------------------------------------------------------------------------------------


PER_NODE = "ranks a node"  # a column only where nodes have several
HEADLINE = [
    "workload", "links", "ranks", PER_NODE, "method", "step", "× faster", "bytes a step", "× fewer", "score",
    "against DDP", "seeds", "lines",
]  # fmt: skip


def headline(groups: Sequence[Group]) -> Section | None:
    if not groups:
        return None
    kinds = {group.kind: UNITS[group.kind] for group in groups if group.score is not None}
    words = "A step's time is the median after the warm-up, of local steps the mean; bytes are those that the kernel "
    words += "counts on a rank's TCP connections. × is against plain DDP on the same links. "
    words += "".join(f"{kind}: {unit}. " for kind, unit in kinds.items())
    return Section("Headline", words.strip(), Table(*_headline(groups), "all methods at all settings"))


def headline_text(groups: Sequence[Group]) -> str:
    """The same table for a terminal."""
    headers, rows = _headline(groups)
    return text_table(headers[:-1], [[cell.text if isinstance(cell, Number) else str(cell) for cell in row[:-1]]
                                     for row in rows])  # fmt: skip


def _headline(groups: Sequence[Group]) -> tuple[list[str], list[list[Value]]]:
    settings = by_setting(groups).values()
    rows = [_headline_row(group, baseline_of(compared, group)) for compared in settings for group in compared]
    several = any(group.setting.per_node > 1 for group in groups)
    kept = [column for column, header in enumerate(HEADLINE) if several or header != PER_NODE]
    return [HEADLINE[column] for column in kept], [[row[column] for column in kept] for row in rows]


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
