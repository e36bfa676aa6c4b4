"""The rules by which the entries that the ranks sent become one tensor.

    all       Σ / ranks                       unbiased
    senders   Σ / senders of the entry        what one rank found is not divided by those that sent nothing there
    sqrt      Σ / √(ranks × senders)          in between

In rank order, so every rank gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsewire import kernels
from sparsewire.core.sparse import Sparse, elements
from sparsewire.kernels import Array

RULES = ("all", "senders", "sqrt")


def combine_into(out: Array, parts: Sequence[Sparse], rule: str) -> None:
    """The combination, dense in `out`, a flat array of the entries' numbers."""
    if rule != "all" and not kernels.on_host(out):
        indices, total = combine(parts, rule)
        kernels.of(out).accumulate(out, [(elements(indices, parts[0].width), total)], 1.0)
        return
    pairs = [(elements(part.indices, part.width), part.work_values) for part in parts]
    kernels.of(out).accumulate(out, pairs, _factor(rule, len(parts)))
    if rule != "all":
        places, senders = np.unique(np.concatenate([places for places, _ in pairs]), return_counts=True)
        out[places] /= _divisor(rule, len(parts), senders, out)


def combine(parts: Sequence[Sparse], rule: str) -> tuple[Array, Array]:
    """The same as (entries that any rank sent, their numbers in the work dtype)."""
    indices, total, senders = add_up(parts, [_factor(rule, len(parts))] * len(parts))
    if rule != "all":
        total /= _divisor(rule, len(parts), senders, total)[:, None]
    return indices, total.reshape(-1)


def add_up(parts: Sequence[Sparse], factors: Sequence[float]) -> tuple[Array, Array, Array]:
    """(entries that any part has, a row for each of Σ factor × part in the work dtype, how many parts have it)."""
    width, numbers = parts[0].width, parts[0].work_values.dtype
    indices, having = np.unique(np.concatenate([part.indices for part in parts]), return_counts=True)
    total = np.zeros((indices.size, width), numbers)
    for part, factor in zip(parts, factors, strict=True):
        total[np.searchsorted(indices, part.indices)] += (part.work_values * numbers.type(factor)).reshape(-1, width)
    return indices, total, having


def _factor(rule: str, ranks: int) -> float:
    return 1 / ranks if rule == "all" else 1.0


def _divisor(rule: str, ranks: int, senders: Array, like: Array) -> Array:
    divisor = senders if rule == "senders" else np.sqrt(ranks * senders)
    return divisor.astype(like.dtype)
