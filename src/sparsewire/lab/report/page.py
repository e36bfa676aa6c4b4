"""The page of `sparsewire lab report`: one file with its style, script and pictures in it, which loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .svg import COLOURS, Style, swatch

LIGHT = (
    "#6b6b6b", "#c62f3f", "#1f6fb2", "#b06a00", "#2e7d4f", "#7d4bb0", "#0e9aa8", "#d0559b", "#7a8a00", "#2b3390",
    "#7a4a2b", "#5aa0e0", "#e07b54", "#111111",
)  # fmt: skip
DARK = (
    "#a8a8a8", "#ff7b86", "#6cb6ff", "#f2b14c", "#6fce97", "#c79bf2", "#58cbd6", "#f08cc4", "#c3d24a", "#7f8cff",
    "#c99a78", "#2f86d6", "#ff9d5c", "#f4f4f4",
)  # fmt: skip
STYLE = """
:root { color-scheme: light dark; --back: #fff; --front: #1c1c1c; --soft: #666; --line: #ddd; --head: #f3f3f3;
  --link: #0b57a4; %(light)s }
@media (prefers-color-scheme: dark) {
  :root { --back: #161616; --front: #e8e8e8; --soft: #a5a5a5; --line: #3a3a3a; --head: #242424; --link: #8cc1ff;
    %(dark)s } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--back); color: var(--front);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.6rem; line-height: 1.2 } h2 { font-size: 1.25rem; margin-top: 2.5rem } h3 { font-size: 1rem }
a { color: var(--link) } .soft { color: var(--soft) }
.scroll { overflow: auto } caption { text-align: left }
@media screen and (min-width: 50rem) { .scroll { max-height: 85vh } }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  white-space: nowrap }
th { background: var(--head); position: sticky; top: 0; white-space: normal }
th.words, td.words { text-align: left; white-space: normal } td.words { min-width: 7rem }
td.short { white-space: nowrap; min-width: 0 }
@media (max-width: 50rem) { .stays { position: sticky; left: 0; z-index: 1 } td.stays { background: var(--back) }
  th.stays { z-index: 2 } }
th button { all: unset; cursor: pointer; font-weight: 600 } th button:focus-visible { outline: 2px solid var(--link) }
th[aria-sort=ascending] button::after { content: " ▲" } th[aria-sort=descending] button::after { content: " ▼" }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%%, 26rem), 1fr)); gap: 1.5rem;
  margin-top: 1rem }
figure { margin: 0; min-width: 0 } figcaption { font-weight: 600 }
svg { width: 100%%; height: auto; display: block; overflow: visible }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft) } svg .grid { stroke: var(--line) }
svg polyline { fill: none; stroke-width: 2 } svg .hollow { fill: var(--back); stroke-width: 1.5 }
svg.swatch { display: inline-block; width: 14px; height: 14px; vertical-align: middle; margin-right: .4rem }
svg.swatch.wide { width: 56px }
.legend { list-style: none; margin: .3rem 0; padding: 0; font-size: .85rem; display: flex; flex-wrap: wrap;
  gap: 0 1rem }
details { margin: .4rem 0; font-size: .9rem } summary { cursor: pointer; color: var(--link) }
pre { white-space: pre-wrap; background: var(--head); padding: .6rem; font-size: .8rem }
:target { outline: 2px solid var(--link); outline-offset: 2px }
%(marks)s
"""
SHORT = 20  # characters that stay on one line
STAYS = ("method", "codec")  # columns that stay on a phone's screen when it shows those to their right
SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => {
  const head = button.parentElement, row = head.parentElement, body = row.closest("table").tBodies[0];
  const place = [...row.cells].indexOf(head), up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of row.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = line => line.cells[place].dataset.value ?? line.cells[place].textContent.trim();
  const order = (a, b) => a === "" ? 1 : b === "" ? -1 : (up ? 1 : -1) *
    (isNaN(a) || isNaN(b) ? String(a).localeCompare(b, "en", {numeric: true}) : a - b);
  [...body.rows].sort((a, b) => order(value(a), value(b))).forEach(line => body.append(line));
});
const reveal = () => { const found = document.getElementById(location.hash.slice(1));
  if (found) { found.open = true; for (let up = found; up; up = up.parentElement) if (up.tagName === "DETAILS")
    up.open = true; found.scrollIntoView(); } };
addEventListener("hashchange", reveal);
reveal();
"""


def style() -> str:
    def colours(some: Sequence[str]) -> str:
        return " ".join(f"--c{number}: {colour};" for number, colour in enumerate(some))

    marks = "\n".join(f".s{n} {{ stroke: var(--c{n}) }} .f{n} {{ fill: var(--c{n}) }}" for n in range(COLOURS))
    return STYLE % {"light": colours(LIGHT), "dark": colours(DARK), "marks": marks}


def page(title: str, about: str, sections: Sequence[str]) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{style()}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{about}
{"".join(sections)}
<script>{SCRIPT}</script>
</body>
</html>
"""


def section(title: str, *parts: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{''.join(parts)}</section>\n"


def paragraph(words: str) -> str:
    return f"<p>{escape(words)}</p>\n"


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """What a cell shows, and what it is sorted by; None sorts last. Words stand to the left."""

    text: str
    value: float | None
    words: bool = False


@dataclass(frozen=True)
class Links:
    """Places in the page: (id, words); sorted by the first of them, r<file>-<line>."""

    places: Sequence[tuple[str, str]]


Value = str | Number | Links


def html_table(headers: Sequence[str], rows: Sequence[Sequence[Value]], caption: str) -> str:
    """Sortable by any column."""
    words = [_is_words(cell) for cell in rows[0]] if rows else [True] * len(headers)
    heads = "".join(_head(header, left) for header, left in zip(headers, words, strict=True))
    stays = [header in STAYS for header in headers]
    body = "".join(f"<tr>{''.join(map(_cell, row, stays))}</tr>\n" for row in rows)
    return (
        f'<div class="scroll"><table><caption class="soft">{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _head(header: str, words: bool) -> str:
    kind = _classes(words=words, stays=header in STAYS)
    return f'<th scope="col"{kind}><button type="button">{escape(header)}</button></th>'


def _classes(**which: bool) -> str:
    """
    >>> _classes(words=True, short=False), _classes(words=False)
    (' class="words"', '')
    """
    names = " ".join(name for name, wanted in which.items() if wanted)
    return f' class="{names}"' if names else ""


def _is_words(cell: Value) -> bool:
    return isinstance(cell, str) or (isinstance(cell, Number) and cell.words)


def _cell(cell: Value, stays: bool = False) -> str:
    if isinstance(cell, Links):
        words = ", ".join(link(place, words) for place, words in cell.places)
        return f'<td data-value="{_line_order(cell.places[0][0])}">{words}</td>'
    text = cell if isinstance(cell, str) else cell.text
    left = _is_words(cell)
    kind = _classes(words=left, short=left and len(text) <= SHORT, stays=stays)
    order = f' data-value="{_script_number(cell.value)}"' if isinstance(cell, Number) else ""
    return f"<td{kind}{order}>{escape(text)}</td>"


def _script_number(value: float | None) -> str:
    return "" if value is None else "Infinity" if value == float("inf") else repr(value)


def _line_order(place: str) -> int:
    """
    >>> _line_order("r0-10") < _line_order("r1-2")
    True
    """
    file, _, line = place[1:].partition("-")
    return int(file) * 10**9 + int(line)


def link(place: str, words: str) -> str:
    return f'<a href="#{escape(place)}">{escape(words)}</a>'


# --- figures ---------------------------------------------------------------------------------------------------------


def figures(some: Sequence[str]) -> str:
    return f'<div class="figures">{"".join(some)}</div>\n'


def figure(
    caption: str, picture: str, names: Sequence[tuple[Style, str]], table: str,
    shows: Sequence[str] = ("stroke", "mark"),
) -> str:  # fmt: skip
    """A picture, its legend, and the same numbers as a table, for whoever does not see it."""
    legend = "".join(f"<li>{swatch(style, shows)}{escape(name)}</li>" for style, name in names)
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>{picture}<ul class='legend'>{legend}</ul>"
        f"<details><summary>the numbers</summary>{table}</details></figure>\n"
    )
