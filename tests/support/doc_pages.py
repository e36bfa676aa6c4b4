"""What the tests of the documentation share: its pages, their headings, links, paragraphs and code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    if "_build" not in path.parts
)
FENCE = re.compile(r"^ *(```+|:::+)")
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line's number, and why it cannot be run, if that is said."""

    page: Path
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start, before = None, ""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            if start is None and line.strip():
                before = line
        elif start is None:
            start = number
        else:
            reason = NOT_RUN.search(before)
            text = "\n".join(lines[start + 1 : number]) + "\n"
            yield Block(page, start + 1, lines[start].strip("` "), text, reason[1] if reason else "")
            start, before = None, ""


def prose(page: Path) -> list[str]:
    """The page's lines, where those of fenced blocks and comments are empty."""
    text = re.sub(
        r"<!--.*?-->", lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"), flags=re.S
    )
    inside, kept = False, []
    for line in text.splitlines():
        fence = bool(FENCE.match(line))
        kept.append("" if inside or fence else line)
        inside ^= fence
    return kept


def paragraphs(page: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every paragraph, list item and table row."""
    start, words = 0, ""
    for number, line in enumerate([*prose(page), ""], 1):
        begins = re.match(r" *([-*+] |\d+\. |\||#)", line) or words.startswith("#")
        if (begins or not line.strip()) and words:
            yield start, words
            words = ""
        if line.strip():
            start, words = (start, f"{words} {line}") if words else (number, line)


def headings(page: Path) -> Iterator[str]:
    """Anchors as GitHub and MyST make them."""
    seen: dict[str, int] = {}
    for line in prose(page):
        if found := re.match(r"#+ (.*)", line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", found[1]).replace("`", "")
            anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            yield f"{anchor}-{count}" if count else anchor


def links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(prose(page), 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            yield number, target
