"""The page of `sparsewire lab report`: what it is made of, and the template that makes it one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from markupsafe import Markup

LIGHT = (
    "#6b6b6b", "#c62f3f", "#1f6fb2", "#b06a00", "#2e7d4f", "#7d4bb0", "#0e9aa8", "#d0559b", "#7a8a00", "#2b3390",
    "#7a4a2b", "#5aa0e0", "#e07b54", "#111111",
)  # fmt: skip
DARK = (
    "#a8a8a8", "#ff7b86", "#6cb6ff", "#f2b14c", "#6fce97", "#c79bf2", "#58cbd6", "#f08cc4", "#c3d24a", "#7f8cff",
    "#c99a78", "#2f86d6", "#ff9d5c", "#f4f4f4",
)  # fmt: skip
SHORT = 20  # characters that stay on one line
STAYS = ("method", "codec")  # columns that stay on a phone's screen when it shows those to their right


@dataclass(frozen=True)
class Number:
    """A cell's text, and the value that it is sorted by; None sorts last. Words stand to the left."""

    text: str
    value: float | None
    words: bool = False


@dataclass(frozen=True)
class Links:
    """Anchors in the page: (id, words); sorted by the first of them, r<file>-<line>."""

    anchors: Sequence[tuple[str, str]]


Value = str | Number | Links


class Cell(NamedTuple):
    """A cell as the template writes it."""

    classes: str
    text: str
    order: str | None = None
    links: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Table:
    """Sortable by any column."""

    headers: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str

    @property
    def heads(self) -> list[Cell]:
        words = [_is_words(cell) for cell in self.rows[0]] if self.rows else [True] * len(self.headers)
        return [
            Cell(_classes(words=left, stays=header in STAYS), header)
            for header, left in zip(self.headers, words, strict=True)
        ]

    @property
    def cells(self) -> list[list[Cell]]:
        return [[_cell(one, head in STAYS) for one, head in zip(row, self.headers, strict=True)] for row in self.rows]


class Figure(NamedTuple):
    """A picture, its legend (swatches and names), and the same numbers as a table, for whoever does not see it."""

    caption: str
    picture: Markup
    legend: Sequence[tuple[Markup, str]]
    table: Table


@dataclass(frozen=True)
class Section:
    title: str
    words: str = ""
    table: Table | None = None
    figures: Sequence[Figure] = field(default=())


class Detail(NamedTuple):
    """A line of results, as the page shows it when it is unfolded."""

    anchor: str
    title: str
    command: str
    body: str


def render(
    title: str, words: str, machines: Sequence[str], sections: Sequence[Section], details: Sequence[Detail]
) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    pages = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return pages.get_template("page.html.j2").render(
        title=title, words=words, machines=machines, sections=sections, details=details, light=LIGHT, dark=DARK
    )


def _classes(**which: bool) -> str:
    """
    >>> _classes(words=True, short=False, stays=True), _classes(words=False)
    ('words stays', '')
    """
    return " ".join(name for name, wanted in which.items() if wanted)


def _is_words(cell: Value) -> bool:
    return isinstance(cell, str) or (isinstance(cell, Number) and cell.words)


def _cell(cell: Value, stays: bool) -> Cell:
    if isinstance(cell, Links):
        return Cell("", "", str(_line_order(cell.anchors[0][0])), cell.anchors)
    text, left = cell if isinstance(cell, str) else cell.text, _is_words(cell)
    kind = _classes(words=left, short=left and len(text) <= SHORT, stays=stays)
    return Cell(kind, text, _script_number(cell.value) if isinstance(cell, Number) else None)


def _script_number(value: float | None) -> str:
    return "" if value is None else "Infinity" if value == float("inf") else repr(value)


def _line_order(anchor: str) -> int:
    """
    >>> _line_order("r0-10") < _line_order("r1-2")
    True
    """
    file, _, line = anchor[1:].partition("-")
    return int(file) * 10**9 + int(line)
