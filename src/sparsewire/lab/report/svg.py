"""Pictures as SVG in text: lines with markers, and stacked bars. Colours are classes that the page defines.

Every mark can link to a place in the page, and has a title of its own; colours are never all that tells lines apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 10, 40
BAR, GAP = 16, 8
DASHES = (
    "", "8 4", "2 3", "10 3 2 3", "16 4", "6 2 2 2 2 2", "4 8", "14 3 4 3", "1 5", "12 3 2 3 2 3 2 3", "20 3 1 3",
    "4 2 4 8",
)  # fmt: skip
COLOURS = 14
MOST_DIGITS = 9
Write = Callable[[float, int], str]  # a number, with so many digits


class Style(NamedTuple):
    """The colour of a line is the same in all pictures; its dashes and marks are by its place in one."""

    colour: int
    place: int

    @property
    def number(self) -> int:
        return self.colour % COLOURS

    @property
    def dash(self) -> str:
        return DASHES[self.place % len(DASHES)]


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    title: str = ""
    target: str = ""  # the id of a place in the page


@dataclass(frozen=True)
class Line:
    style: Style
    marks: Sequence[Mark]
    joined: bool = True
    marked: bool = True


@dataclass(frozen=True)
class Axis:
    """From low to high; the numbers at its ticks are written by `write`, with so many digits as tell them apart. Ticks
    are `at` what is counted, such as ranks, or else at round numbers."""

    label: str
    low: float
    high: float
    log: bool = False
    write: Write = field(default=lambda value, digits: compact(value, digits))
    at: Sequence[float] = ()

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high, at = (math.log10(one) if self.log else one for one in (self.low, self.high, value))
        return (at - low) / (high - low)

    def ticks(self) -> list[float]:
        if self.at:
            return list(self.at)
        powers = self._inside(_powers(self.low, self.high)) if self.log else []
        return powers if len(powers) > 1 else self._inside(_steps(self.low, self.high))

    def _inside(self, ticks: Sequence[float]) -> list[float]:
        return [tick for tick in ticks if self.low <= tick * (1 + 1e-9) and tick * (1 - 1e-9) <= self.high]

    def labels(self) -> list[tuple[float, str]]:
        """
        >>> [words for _, words in Axis("", 0.9994, 1.0003).labels()]
        ['0.9994', '0.9996', '0.9998', '1', '1.0002']
        """
        ticks = self.ticks()
        tries = ([self.write(tick, digits) for tick in ticks] for digits in range(3, MOST_DIGITS + 1))
        words = next((some for some in tries if len(set(some)) == len(some)), [""] * len(ticks))
        return list(zip(ticks, words, strict=True))


def axis(label: str, values: Sequence[float], log: bool = False, write: Write | None = None) -> Axis:
    """Wide enough for all values; not to zero, where logarithms end."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    if log:
        low, high = low / 1.3, high * 1.3
    else:
        room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = (0.0 if 0 <= low < 0.4 * high else low - room), high + room
    return Axis(label, low, high, log, write or compact)


def _steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= raw)
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten; with 2 and 5 between them where there are few, thinned out where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    between = (1, 2, 5) if last - first <= 2 else (1,)
    apart = max(1, (last - first) // 5)
    return [nice * 10.0**power for power in range(first, last + 1, apart) for nice in between]


def compact(value: float, digits: int = 3) -> str:
    """
    >>> compact(0.25), compact(1500), compact(2e7), compact(0)
    ('0.25', '1.5k', '20M', '0')
    >>> compact(999_700), compact(2.5e12), compact(999_700, 4)
    ('1M', '2.5T', '999.7k')
    """
    rounded = float(f"{value:.{digits}g}")
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if 10**power <= abs(rounded) < 1e18:
            return f"{rounded / 10**power:.{digits}g}{unit}"
    return f"{rounded:.{digits}g}"


# --- a plot of lines -------------------------------------------------------------------------------------------------


def plot(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    grid = "".join(_x_tick(*one, x) for one in x.labels()) + "".join(_y_tick(*one, y) for one in y.labels())
    labels = _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 6, x.label, "middle")
    labels += f'<g transform="translate(11 {TOP + (HEIGHT - TOP - BOTTOM) / 2}) rotate(-90)">{_text(0, 0, y.label)}</g>'
    return picture(title, HEIGHT, grid + labels + "".join(_line(line, x, y) for line in lines))


def picture(title: str, height: float, body: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{body}</svg>'
    )


def _at(mark: Mark, x: Axis, y: Axis) -> tuple[float, float]:
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    return LEFT + across * x.share(mark.x), HEIGHT - BOTTOM - down * y.share(mark.y)


def _line(line: Line, x: Axis, y: Axis) -> str:
    places = [_at(mark, x, y) for mark in line.marks]
    marks = [_mark(line.style, a, b, mark) for (a, b), mark in zip(places, line.marks, strict=True)]
    return (_stroke(line.style, places) if line.joined else "") + ("".join(marks) if line.marked else "")


def _stroke(style: Style, places: Sequence[tuple[float, float]]) -> str:
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    return f'<polyline class="s{style.number}" points="{path}" stroke-dasharray="{style.dash}"/>'


def _mark(style: Style, a: float, b: float, mark: Mark) -> str:
    """Full, and hollow when all shapes are taken."""
    shapes = _shapes(a, b)
    turn, place = divmod(style.place, len(shapes))
    shape, kind = shapes[place], f"s{style.number} hollow" if turn % 2 else f"f{style.number}"
    title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
    return linked(f'<{shape} class="{kind}">{title}</{shape.split()[0]}>', mark.target)


def _shapes(a: float, b: float, r: float = 4.0) -> tuple[str, ...]:
    def polygon(*corners: tuple[float, float]) -> str:
        return f'polygon points="{" ".join(f"{a + r * x:.1f},{b + r * y:.1f}" for x, y in corners)}"'

    return (
        f'circle cx="{a:.1f}" cy="{b:.1f}" r="{r}"',
        f'rect x="{a - r:.1f}" y="{b - r:.1f}" width="{2 * r}" height="{2 * r}"',
        polygon((0, -1.3), (1.2, 1), (-1.2, 1)),
        polygon((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
        polygon((0, 1.3), (1.2, -1), (-1.2, -1)),
        polygon((-0.4, -1.3), (0.4, -1.3), (0.4, -0.4), (1.3, -0.4), (1.3, 0.4), (0.4, 0.4), (0.4, 1.3), (-0.4, 1.3),
                (-0.4, 0.4), (-1.3, 0.4), (-1.3, -0.4), (-0.4, -0.4)),
        polygon((-1.3, -1.3), (0, -0.5), (1.3, -1.3), (0.5, 0), (1.3, 1.3), (0, 0.5), (-1.3, 1.3), (-0.5, 0)),
    )  # fmt: skip


def linked(body: str, target: str) -> str:
    return f'<a href="#{target}">{body}</a>' if target else body


def swatch(style: Style, shows: Sequence[str]) -> str:
    """For a legend, what stands in the picture: "stroke" and "mark", or "block"."""
    kind, width = ("swatch wide", 56) if "stroke" in shows else ("swatch", 14)
    drawn = {
        "stroke": _stroke(style, [(0, 7), (width, 7)]),
        "mark": _mark(style, width / 2, 7, Mark(0, 0)),
        "block": f'<rect class="f{style.number}" x="1" y="1" width="12" height="12"/>',
    }
    body = "".join(drawn[one] for one in shows)
    return f'<svg class="{kind}" viewBox="0 0 {width} 14" aria-hidden="true">{body}</svg>'


def _x_tick(tick: float, words: str, x: Axis) -> str:
    at, bottom = LEFT + (WIDTH - LEFT - RIGHT) * x.share(tick), HEIGHT - BOTTOM
    line = f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}"/>'
    return line + _text(at, bottom + 14, words, "middle")


def _y_tick(tick: float, words: str, y: Axis) -> str:
    at = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y.share(tick)
    line = f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
    return line + _text(LEFT - 4, at + 4, words, "end")


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


# --- stacked bars ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A bar of parts (style, length, title), its name above it, and what stands at its end."""

    name: str
    parts: Sequence[tuple[Style, float, str]]
    total: str
    target: str = ""


def stacked(title: str, stacks: Sequence[Stack]) -> str:
    """Bars from the left, all to one scale."""
    longest = max(sum(length for _, length, _ in stack.parts) for stack in stacks) or 1.0
    row = 13 + BAR + GAP
    body = "".join(_stack(stack, row * place, (WIDTH - 70) / longest) for place, stack in enumerate(stacks))
    return picture(title, row * len(stacks), body)


def _stack(stack: Stack, top: float, scale: float) -> str:
    body, at = _text(0, top + 11, stack.name, "start"), 0.0
    for style, length, title in stack.parts:
        place = f'x="{at:.1f}" y="{top + 14:.1f}" width="{length * scale:.1f}" height="{BAR}"'
        body += linked(f'<rect class="f{style.number}" {place}><title>{escape(title)}</title></rect>', stack.target)
        at += length * scale
    return body + _text(at + 4, top + 14 + BAR - 4, stack.total, "start")
