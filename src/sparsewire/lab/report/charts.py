"""The report's pictures: matplotlib draws them as SVG, which stands in the page and takes its colours from the page.

Every mark can link to a place in the page and has a title of its own; colours are never all that tells lines apart.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import matplotlib
from markupsafe import Markup
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, Formatter, LogLocator, MaxNLocator, NullLocator

from ..pictures import new_figure
from .data import Style
from .inline import BACK, FAINT, SOFT, Links, inline
from .page import LIGHT
from .units import compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 420, 280  # of a plot; an inch has 72
BAR, NAME, GAP = 16, 13, 8
SETTINGS: Any = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 13, "lines.scale_dashes": False,
    "path.simplify": False,
    "text.color": SOFT, "axes.labelcolor": SOFT, "xtick.labelcolor": SOFT, "ytick.labelcolor": SOFT,
    "grid.color": FAINT, "axes.edgecolor": FAINT, "xtick.major.size": 0, "ytick.major.size": 0,
}  # fmt: skip
DASHES: Sequence[Any] = (
    "solid", (0, (8, 4)), (0, (2, 3)), (0, (10, 3, 2, 3)), (0, (16, 4)), (0, (6, 2, 2, 2, 2, 2)), (0, (4, 8)),
    (0, (14, 3, 4, 3)), (0, (1, 5)), (0, (12, 3, 2, 3, 2, 3, 2, 3)), (0, (20, 3, 1, 3)), (0, (4, 2, 4, 8)),
)  # fmt: skip
MARKERS = "os^DvPX"
MOST_DIGITS = 9


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
    """`at`: ticks where something was counted, such as ranks, instead of at round numbers."""

    label: str
    log: bool = False
    at: Sequence[float] = ()


@dataclass(frozen=True)
class Stack:
    """A bar of parts (style, length, title), its name above it, and what stands at its end."""

    name: str
    parts: Sequence[tuple[Style, float, str]]
    total: str
    target: str = ""


class Compact(Formatter):
    """Ticks with so many digits as tell them apart."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return compact(x)

    def format_ticks(self, values: Any) -> list[str]:
        tries = ([compact(float(value), digits) for value in values] for digits in range(3, MOST_DIGITS + 1))
        return next((words for words in tries if len(set(words)) == len(words)), [""] * len(values))


# --- pictures --------------------------------------------------------------------------------------------------------


def plot(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> Markup:
    def draw(figure: Figure, links: Links) -> None:
        axes = figure.subplots()
        for line in lines:
            _draw_line(axes, line, links)
        axes.set(xlabel=x.label, ylabel=y.label, xscale=_scale(x), yscale=_scale(y))
        _set_ticks(axes.xaxis, x, [mark.x for line in lines for mark in line.marks])
        _set_ticks(axes.yaxis, y, [mark.y for line in lines for mark in line.marks])
        axes.autoscale_view()
        axes.grid()
        axes.spines[:].set_visible(False)

    return _picture(title, WIDTH, HEIGHT, draw)


def stacked(title: str, stacks: Sequence[Stack]) -> Markup:
    """Bars from the left, all to one scale."""
    longest = max(sum(length for _, length, _ in stack.parts) for stack in stacks) or 1.0
    row = NAME + BAR + GAP

    def draw(figure: Figure, links: Links) -> None:
        axes = _bare_axes(figure, WIDTH, row * len(stacks))
        for index, stack in enumerate(stacks):
            _draw_stack(axes, stack, row * index, (WIDTH - 70) / longest, links)

    return _picture(title, WIDTH, row * len(stacks), draw)


def legend(names: Sequence[tuple[Style, str]], *shows: str) -> list[tuple[Markup, str]]:
    """Swatches and names of what stands in the picture: "stroke" and "mark" (both, if nothing is said) or "block"."""
    return [(swatch(style, shows or ("stroke", "mark")), name) for style, name in names]


@lru_cache(maxsize=1000)
def swatch(style: Style, shows: tuple[str, ...]) -> Markup:
    kind, width = ("swatch wide", 56) if "stroke" in shows else ("swatch", 14)

    def draw(figure: Figure, links: Links) -> None:
        axes = _bare_axes(figure, width, 14)
        if "stroke" in shows:
            axes.add_line(_stroke(style, [0, width], [7, 7]))
        if "mark" in shows:
            axes.add_line(_dot(style, width / 2, 7))
        if "block" in shows:
            axes.add_patch(Rectangle((1, 1), 12, 12, color=_colour(style)))

    return _picture("", width, 14, draw, {"class": kind, "aria-hidden": "true"})


def _colour(style: Style) -> str:
    return LIGHT[style.colour % len(LIGHT)]


def _stroke(style: Style, x: Sequence[float], y: Sequence[float]) -> Line2D:
    return Line2D(x, y, color=_colour(style), linestyle=DASHES[style.order % len(DASHES)], linewidth=2, clip_on=False)


def _dot(style: Style, x: float, y: float) -> Line2D:
    """Full, and hollow when all shapes are taken."""
    turn, shape = divmod(style.order, len(MARKERS))
    inside = BACK if turn % 2 else _colour(style)
    marker: Any = {"marker": MARKERS[shape], "markersize": 8, "markeredgewidth": 1.5, "markerfacecolor": inside}
    return Line2D([x], [y], linestyle="none", color=_colour(style), clip_on=False, **marker)


def _draw_line(axes: Axes, line: Line, links: Links) -> None:
    if line.joined:
        axes.add_line(_stroke(line.style, [mark.x for mark in line.marks], [mark.y for mark in line.marks]))
    for mark in line.marks if line.marked else ():
        dot = _dot(line.style, mark.x, mark.y)
        _set_link(dot, links, mark.target, mark.title)
        axes.add_line(dot)


def _set_link(artist: Any, links: Links, target: str, title: str) -> None:
    """Links the artist by a number, until the picture is in the page."""
    artist.set_url(f"{len(links)}")
    links.append((target, title))


def _scale(axis: Axis) -> str:
    return "log" if axis.log else "linear"


def _set_ticks(axis: Any, shown: Axis, values: Sequence[float]) -> None:
    spread = max(values, default=1.0) / min(values, default=1.0) if shown.log else 1.0
    subs = (1, 2, 3, 5, 7) if spread < 10 else (1, 2, 5) if spread < 100 else (1,)
    round_numbers = (
        LogLocator(subs=subs, numticks=7) if shown.log else MaxNLocator(7, steps=[1, 2, 5, 10], min_n_ticks=3)
    )
    axis.set_major_locator(FixedLocator(shown.at) if shown.at else round_numbers)
    axis.set_major_formatter(Compact())
    axis.set_minor_locator(NullLocator())


def _bare_axes(figure: Figure, width: float, height: float) -> Axes:
    """Coordinates are those of the picture, from its upper left corner."""
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return axes


def _draw_stack(axes: Axes, stack: Stack, top: float, scale: float, links: Links) -> None:
    axes.text(0, top + NAME - 2, "".join(letter for letter in stack.name if letter.isprintable()))
    at = 0.0
    for style, length, title in stack.parts:
        part = Rectangle((at, top + NAME + 1), length * scale, BAR, color=_colour(style), linewidth=0)
        _set_link(part, links, stack.target, title)
        axes.add_patch(part)
        at += length * scale
    axes.text(at + 4, top + NAME + BAR - 3, stack.total)


def _picture(
    title: str, width: float, height: float, draw: Callable[[Figure, Links], None],
    attributes: Mapping[str, str] | None = None,
) -> Markup:  # fmt: skip
    links: Links = []
    file = io.StringIO()
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser's fonts have what matplotlib's lacks
        figure = new_figure(width / 72, height / 72)
        figure.patch.set_visible(False)
        draw(figure, links)
        for axes in figure.axes:
            axes.patch.set_visible(False)
        figure.savefig(file, format="svg", metadata={"Date": None})
    shown = {"viewBox": f"0 0 {width:g} {height:g}", **(attributes or {"role": "img", "aria-label": title})}
    return inline(file.getvalue(), links, shown)
