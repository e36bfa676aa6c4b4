"""`sparsewire lab report`: what the page says is in the results, every figure leads to its line, nothing is loaded."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import fails, run

from sparsewire.lab import measure

if not measure.has("torch"):
    pytest.skip("torch is not installed", allow_module_level=True)

from lab_records import all_records, failed, rates, record, save

VOID = {"meta", "link", "br", "img"}
SECTIONS = [
    "Headline", "Time to accuracy", "Accuracy against bytes", "Loss curves", "Step time by stage",
    "Bytes against ranks", "Rate and distortion", "What failed", "Lines of results",
]  # fmt: skip


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


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Page, str, Path]:
    folder = tmp_path_factory.mktemp("report")
    (folder / "rates.json").write_text(json.dumps(rates(), indent=2))
    page, text = reported(folder, all_records(), folder / "rates.json")
    return page, text, folder / "out" / "report.html"


def test_it_has_all_sections_and_loads_nothing(whole):
    page, text, _ = whole
    assert page.titles == SECTIONS and page.others == []
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text


def test_every_figure_leads_to_a_line_of_results(whole):
    page, _, _ = whole
    assert len(set(page.ids)) == len(page.ids)
    assert page.links == set(page.ids), "no link leads nowhere, and every line is referred to"


def test_every_picture_says_what_it_shows(whole):
    page, _, _ = whole
    assert len(page.pictures) > 8 and all(len(words) > 40 for words in page.pictures)
    assert any("topk(1%) | values=<&> 96." in words for words in page.pictures)


def test_the_headline_is_what_was_measured(whole):
    page, _, _ = whole
    plain, ours = record("synthetic-25m", "ddp", "100mbit"), record("synthetic-25m", "topk(1%) | values=<&>", "100mbit")
    row = next(row for row in page.rows if row[:2] == ["synthetic-25m", "100mbit"] and row[3].startswith("topk"))
    assert row[4] == f"{ours['step_ms']:,.0f} ms" and row[5] == f"{plain['step_ms'] / ours['step_ms']:.2f}"
    assert row[7] == f"{plain['bytes_per_step'] / ours['bytes_per_step']:,.1f}" and row[-1] == "a4"
    digits = next(row for row in page.rows if row[0] == "mlp-digits" and row[3] == "fp16")
    assert digits[8:] == ["96.79", "-0.06", "2", "a20, a25"], "the mean of two seeds"


def test_time_to_accuracy_is_the_first_test_that_reached_it(whole):
    page, _, _ = whole
    row = next(row for row in page.rows if row[0] == "mlp-digits, 4 ranks, 100mbit" and row[1] == "fp16")
    one = record("mlp-digits", "fp16", "100mbit")
    assert row[3] == f"{sum(one['step_seconds']):.1f} s", "only the test at the end is within 2 %"


def test_sections_without_data_are_left_out(tmp_path):
    page, _ = reported(tmp_path, [record("synthetic-25m", "ddp", "1gbit")])
    assert page.titles == ["Headline", "Step time by stage", "Lines of results"]


def test_a_failure_that_was_made_good_is_not_reported(tmp_path):
    page, _ = reported(tmp_path, [failed("mlp-digits", "ddp", "1gbit"), record("mlp-digits", "ddp", "1gbit")])
    assert "What failed" not in page.titles and page.ids == ["r0-2"]


def test_what_is_no_result_is_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"rows": []}')
    assert "no results" in fails(capsys, "lab", "report", tmp_path / "a.json", "-o", tmp_path / "r.html")
    (tmp_path / "b.json").write_text("")
    assert "no results" in fails(capsys, "lab", "report", tmp_path / "b.json", "-o", tmp_path / "r.html")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_it_without_complaint(whole, tmp_path):
    """The script sorts the first table by its fifth column, when a copy of the page clicks on it."""
    click = "<script>document.querySelectorAll('th button')[4].click()</script>\n</body>"
    copy = tmp_path / "report.html"
    copy.write_text(whole[1].replace("</body>", click))
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command = ["chromium", *words, f"--user-data-dir={tmp_path / 'user'}", f"{copy.as_uri()}#r0-3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "CONSOLE" not in done.stderr, done.stderr
    assert re.search(r'<details id="r0-3" open', done.stdout), "the line that is asked for is unfolded"
    first = Page(done.stdout).rows
    steps = [row[4] for row in first[1:24]]
    assert steps[0] == "400 ms" and steps[-1] == "20.5 s" and 'aria-sort="ascending"' in done.stdout
