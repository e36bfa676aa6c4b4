"""One look for all pictures: figures without a display, named colours, labelled axes, files that appear whole.

matplotlib is imported when a figure is made, so that modules of pictures can be imported without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tables import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#444444", "#7f7f7f", "#999999"
RED, YELLOW, BLUE, GREEN = "#d1495b", "#edae49", "#30638e", "#3c7a57"
VIOLET, SKY, BROWN, OLIVE = "#8d6a9f", "#76b0d6", "#8c564b", "#bcbd22"
MINT, PURPLE = "#8fb8a0", "#a05195"
SERIES = (GREY, RED, YELLOW, BLUE, GREEN, VIOLET, SKY, BROWN, BLACK, OLIVE)  # of lines that have no colour by name
MARKERS = "osdv^<*PXD"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, which needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Writes the figure as its file's suffix says: .svg, .pdf, otherwise PNG."""
    kind = path.suffix[1:].lower()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: figure.savefig(file, format=kind if kind in ("svg", "pdf") else "png", dpi=100))


def label_axes(axes: Axes, x: str = "", y: str = "", title: str = "", legend: str = "", **settings: Any) -> None:
    """Labels, a faint grid, no frame above and to the right; `legend` says where it is, if there is one."""
    axes.set(xlabel=x, ylabel=y, **settings)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(loc=legend, fontsize=8)  # type: ignore[call-overload]
