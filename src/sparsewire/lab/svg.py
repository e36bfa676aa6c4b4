"""Pictures as SVG in text: lines with markers, and stacked bars. Colours are classes that the page defines.

Every mark can link to a place in the page, and has a title of its own; colours are never all that tells lines apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 40
BAR, GAP = 16, 8
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4")
COLOURS = 10


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    title: str = ""
    target: str = ""  # the id of a place in the page


@dataclass(frozen=True)
class Line:
    colour: int
    marks: Sequence[Mark]
    joined: bool = True
    marked: bool = True


@dataclass(frozen=True)
class Axis:
    """From low to high; the numbers at its ticks are written by `write`."""

    label: str
    low: float
    high: float
    log: bool = False
    write: Callable[[float], str] = field(default=lambda value: compact(value))

    def share(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high, at = (math.log10(one) if self.log else one for one in (self.low, self.high, value))
        return (at - low) / (high - low)

    def ticks(self) -> list[float]:
        found = _powers(self.low, self.high) if self.log else _steps(self.low, self.high)
        return [tick for tick in found if -1e-9 <= self.share(tick) <= 1 + 1e-9]


def axis(label: str, values: Sequence[float], log: bool = False, write: Callable[[float], str] | None = None) -> Axis:
    """Wide enough for all values; not to zero, where logarithms end."""
    low, high = min(values), max(values)
    if log:
        low, high = low / 1.3, high * 1.3
    else:
        room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low, high = (0.0 if 0 <= low < 0.4 * high else low - room), high + room
    return Axis(label, low, high, log, write or compact)


def _steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= raw)
    return [step * number for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten; with 2 and 5 between them where there are few, thinned out where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    between = (1, 2, 5) if last - first <= 2 else (1,)
    apart = max(1, (last - first) // 5)
    return [nice * 10.0**power for power in range(first, last + 1, apart) for nice in between]


def compact(value: float) -> str:
    """
    >>> compact(0.25), compact(1500), compact(2e7), compact(0)
    ('0.25', '1.5k', '20M', '0')
    """
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g}{unit}"
    return f"{value:.3g}"


# --- a plot of lines -------------------------------------------------------------------------------------------------


def plot(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    grid = "".join(_x_tick(tick, x) for tick in x.ticks()) + "".join(_y_tick(tick, y) for tick in y.ticks())
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
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dash = DASHES[line.colour // 2 % len(DASHES)]
    joined = f'<polyline class="s{line.colour}" points="{path}" stroke-dasharray="{dash}"/>' if line.joined else ""
    marks = [_mark(line.colour, a, b, mark) for (a, b), mark in zip(places, line.marks, strict=True)]
    return joined + ("".join(marks) if line.marked else "")


def _mark(colour: int, a: float, b: float, mark: Mark) -> str:
    shape = _shapes(a, b)[colour % 4]
    return linked(f'<{shape} class="f{colour}"><title>{escape(mark.title)}</title></{shape.split()[0]}>', mark.target)


def _shapes(a: float, b: float, r: float = 4.0) -> tuple[str, ...]:
    return (
        f'circle cx="{a:.1f}" cy="{b:.1f}" r="{r}"',
        f'rect x="{a - r:.1f}" y="{b - r:.1f}" width="{2 * r}" height="{2 * r}"',
        f'polygon points="{a:.1f},{b - 1.3 * r:.1f} {a + 1.2 * r:.1f},{b + r:.1f} {a - 1.2 * r:.1f},{b + r:.1f}"',
        f'polygon points="{a:.1f},{b - 1.4 * r:.1f} {a + 1.4 * r:.1f},{b:.1f} {a:.1f},{b + 1.4 * r:.1f} '
        f'{a - 1.4 * r:.1f},{b:.1f}"',
    )


def linked(body: str, target: str) -> str:
    return f'<a href="#{target}">{body}</a>' if target else body


def swatch(colour: int, block: bool = False) -> str:
    """A mark as it stands in the plots, or a block as in bars, for a legend."""
    if block:
        rect = f'<rect class="f{colour}" x="8" y="1" width="12" height="12"/>'
        return f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">{rect}</svg>'
    body = _line(Line(colour, [Mark(0.5, 0.5)], joined=False), Axis("", 0, 1), Axis("", 0, 1))
    middle = _at(Mark(0.5, 0.5), Axis("", 0, 1), Axis("", 0, 1))
    moved = f'<g transform="translate({14 - middle[0]:.1f} {7 - middle[1]:.1f})">{body}</g>'
    dash = DASHES[colour // 2 % len(DASHES)]
    stroke = f'<polyline class="s{colour}" points="0,7 28,7" stroke-dasharray="{dash}"/>'
    return f'<svg class="swatch" viewBox="0 0 28 14" aria-hidden="true">{stroke}{moved}</svg>'


def _x_tick(tick: float, x: Axis) -> str:
    at, bottom = LEFT + (WIDTH - LEFT - RIGHT) * x.share(tick), HEIGHT - BOTTOM
    line = f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}"/>'
    return line + _text(at, bottom + 14, x.write(tick), "middle")


def _y_tick(tick: float, y: Axis) -> str:
    at = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y.share(tick)
    line = f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
    return line + _text(LEFT - 4, at + 4, y.write(tick), "end")


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


# --- stacked bars ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """A bar of parts (colour, length, title), its name above it, and what stands at its end."""

    name: str
    parts: Sequence[tuple[int, float, str]]
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
    for colour, length, title in stack.parts:
        rect = f'<rect class="f{colour}" x="{at:.1f}" y="{top + 14:.1f}" width="{length * scale:.1f}" height="{BAR}">'
        body += linked(f"{rect}<title>{escape(title)}</title></rect>", stack.target)
        at += length * scale
    return body + _text(at + 4, top + 14 + BAR - 4, stack.total, "start")
