"""Links between pages lead somewhere, and what the code says is in docs/ is there."""

from __future__ import annotations

import re
from pathlib import Path

import doc_pages
import pytest
from doc_pages import ROOT


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=doc_pages.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    assert [f"line {line}: {target}" for line, target in doc_pages.links(page) if not leads(page, target)] == []


def leads(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return True
    path, _, anchor = target.partition("#")
    end = (page.parent / path).resolve() if path else page
    return end.exists() and (not anchor or anchor in doc_pages.headings(end))


def test_pages_that_the_code_names_are_there() -> None:
    folders = ("src", "benchmarks", "examples", "tests", ".ci")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sh", ".toml"}
    ]
    named = {
        (path, page)
        for path in [*files, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / ".ci" / "run"]
        if path.exists()
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    assert [f"{path}: {page}" for path, page in sorted(named) if not (ROOT / page).exists()] == []
