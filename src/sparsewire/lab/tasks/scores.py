"""The kinds of scores that a training can get, and how they are shown."""

from __future__ import annotations

UNITS = {
    "accuracy": "test accuracy in %",
    "loss": "test loss in nats",
    "perplexity": "test perplexity",
    "hits": "hit rate in %: how often the right candidate is among the best 10",
}
HIGHER = ("accuracy", "hits")  # is better


def shown(kind: str, value: float, sign: str = "") -> str:
    """A score, or a difference of two, as it is reported.

    >>> shown("accuracy", 0.981), shown("loss", -0.5, "+")
    ('98.10', '-0.500')
    """
    return f"{100 * value:{sign}.2f}" if kind in HIGHER else f"{value:{sign}.{3 if kind == 'loss' else 2}f}"
