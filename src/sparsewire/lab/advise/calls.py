"""The whole call that `advise` recommends, by optimizer, and what its coverage is expected to cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsewire.codecs.scheme import scheme
from sparsewire.training.recipe import OptimizerFacts, Recipe, ratio_for

from .risk import ADAM, SGD

FACTS = {SGD: OptimizerFacts("SGD", momentum=0.9), ADAM: OptimizerFacts("AdamW", "adaptive")}
LEVEL = 7.5  # the coverage from which Adam's family was level with dense
USUAL = 0.01  # the ratio where neither that nor total_steps is told


def usual_ratio(total_steps: int | None) -> float:
    """The share to predict steps for where none is told."""
    return USUAL if total_steps is None else ratio_for(total_steps)


def calls(chosen: str | None, optimizers: Sequence[str], total_steps: int | None = None) -> list[dict[str, Any]]:
    """For each optimizer the call with this scheme, and what is expected of it where the run's length is known."""
    return [] if chosen is None else [_call(chosen, optimizer, total_steps) for optimizer in optimizers]


def _call(chosen: str, optimizer: str, total_steps: int | None) -> dict[str, Any]:
    plan = scheme(chosen)
    slots = chosen.split(" | ")[1:]
    ratio = getattr(plan.select, "ratio", None)
    spec = chosen if ratio is None else " | ".join([plan.select.id, *slots])
    recipe = Recipe.of([FACTS[optimizer]], spec, ratio=ratio, total_steps=total_steps)
    coverage = None if total_steps is None or ratio is None else ratio * total_steps
    return {
        "optimizer": str(FACTS[optimizer]),
        "call": repr(recipe),
        "coverage": coverage,
        "expected": None if coverage is None else expected(coverage, optimizer),
    }


def expected(coverage: float, optimizer: str = SGD) -> str:
    """How much worse than dense: for SGD a fit to 28 trainings of MNIST with memory=gain, for Adam what a transformer
    of one seed had. Other tasks differ.

    >>> expected(20), expected(7), expected(20, ADAM)
    ('about 2 % more errors than dense', 'about 5 % more errors than dense', "level with dense's loss")
    """
    if optimizer == ADAM:
        return "level with dense's loss" if coverage >= LEVEL else "above dense's loss"
    return f"about {100 * 0.4 / (0.6 + coverage):.0f} % more errors than dense"
