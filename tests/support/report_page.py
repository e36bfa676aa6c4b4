"""The page of `sparsewire lab report`, read back."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from command_line import run
from lab_records import save

VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Ids, links, titles of sections, rows of tables; everything that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: set[str] = set()
        self.others: list[str] = []  # addresses that are not in the page
        self.titles: list[str] = []
        self.rows: list[list[str]] = []
        self.pictures: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, given: list[tuple[str, str | None]]) -> None:
        told = dict(given)
        self.ids += [str(told["id"])] if "id" in told else []
        for name in ("href", "src"):
            where = told.get(name) or ""
            if where.startswith("#"):
                self.links.add(where[1:])
            elif where and where != "data:,":
                self.others.append(where)
        if tag == "svg" and told.get("role") == "img":
            self.pictures.append(told["aria-label"] or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)
        if {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data


def reported(folder: Path, records: list[dict[str, Any]], *more: Path) -> tuple[Page, str]:
    path = save(folder / "lab.jsonl", records)
    assert run("lab", "report", path, *more, "-o", folder / "out" / "report.html") == 0
    text = (folder / "out" / "report.html").read_text()
    return Page(text), text


def labels(picture: str) -> list[str]:
    """The numbers at the ticks of a picture, those below it first."""
    return [words for words in re.findall(r"<text[^>]*>([^<]*)</text>", picture) if words[:1].isdigit()]
