"""A paragraph that a reader can take in at once."""

from __future__ import annotations

from pathlib import Path

import doc_pages
import pytest

LONGEST = 120  # words


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=doc_pages.name)
def test_no_paragraph_is_too_long(page: Path) -> None:
    lengths = {line: len(text.split()) for line, text in doc_pages.paragraphs(page)}
    assert {f"line {line}": length for line, length in lengths.items() if length > LONGEST} == {}
