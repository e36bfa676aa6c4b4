"""The picture of `sparsewire demo`: training loss over seconds, and over steps."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from ..pictures import GREY, RED, label_axes, new_figure, save_figure

COLOURS = (GREY, RED)
STEPS = 10  # losses are drawn as a moving mean over so many steps


def draw_training(result: dict[str, Any], titles: tuple[str, str], heading: str, path: Path) -> None:
    """Loss over seconds, where the link shows, and over steps, where only the method does."""
    figure = new_figure(11, 4.6)
    axes = figure.subplots(1, 2, sharey=True)
    for (name, curve), colour in zip(result["curves"].items(), COLOURS, strict=True):
        facts, steps = result["arms"][name], range(1, 1 + len(curve["loss"]))
        window = min(STEPS, len(steps))
        means = [sum(curve["loss"][end - window : end]) / window for end in steps[window - 1 :]]
        spent = [*accumulate(curve["seconds"])][window - 1 :]
        axes[0].semilogy(spent, means, color=colour, label=f"{name}: {facts['seconds']:.1f} s")
        axes[0].plot(spent[-1:], means[-1:], "o", color=colour)
        label = f"{name}: {facts['accuracy']:.1%} on held-out digits"
        axes[1].semilogy(steps[window - 1 :], means, color=colour, label=label)
    label_axes(axes[0], "seconds of training", f"training loss (mean of {STEPS} steps)", titles[0], "best")
    label_axes(axes[1], "step", "", titles[1], "best")
    figure.suptitle(heading, fontsize=10)
    save_figure(figure, path)
