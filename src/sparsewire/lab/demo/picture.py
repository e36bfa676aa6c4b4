"""The picture of `sparsewire demo`: training loss, and bytes sent over time."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

from ..pictures import GREY, RED, YELLOW, label_axes, new_figure, save_figure

COLOURS = (GREY, YELLOW, RED)
STEPS = 10  # losses are drawn as a moving mean over so many steps


def draw_training(result: dict[str, Any], path: Path) -> None:
    """Loss over steps, and bytes sent over time."""
    figure = new_figure(11, 4.6)
    loss, sent = figure.subplots(1, 2)
    for (name, curve), colour in zip(result["curves"].items(), COLOURS, strict=True):
        facts, steps = result["arms"][name], range(1, 1 + len(curve["loss"]))
        window = min(STEPS, len(steps))
        means = [sum(curve["loss"][end - window : end]) / window for end in steps[window - 1 :]]
        label = f"{name}: {facts['accuracy']:.1%} on held-out digits"
        loss.semilogy(steps[window - 1 :], means, color=colour, label=label)
        sums = [list(accumulate(curve[key])) for key in ("seconds", "bytes")]
        sent.semilogy(*sums, color=colour, label=f"{name}: {_megabytes(facts['bytes'])} in all")
    label_axes(loss, "step", f"training loss (mean of {STEPS} steps)", "Training loss", "best")
    title = f"Bytes: {result['ratio']:.0f} × fewer"
    label_axes(sent, "seconds of its own steps", "bytes sent by a rank so far", title, "best")
    figure.suptitle(f"{result['parameters']:,} parameters, {result['ranks']} ranks: {result['scheme']}", fontsize=10)
    save_figure(figure, path)


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"
