"""`reshard`: states that ranks have saved become those of another number of ranks; the mean of the buffers stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsewire.core.sparse import merged
from sparsewire.errors import InputError

from ..nodes.grid import Grid, cut, merge_parts
from .gain import widest


def reshard(states: Sequence[Mapping[str, Any]], size: int, grid: Grid | None = None) -> list[dict[str, Any]]:
    """All ranks' states as those of `size` ranks; the mean of the buffers over the ranks stays.

    With machines of several ranks (`grid`), a machine's parts together count as one of them: the mean over machines.

    >>> facts = {"world_size": 2, "step": 7, "scale": 1.0}
    >>> old = [{"rank": r, "buffers": {"w": {"residual": np.array([1.0 + r])}}, **facts} for r in range(2)]
    >>> [new["buffers"]["w"]["residual"].tolist() for new in reshard(old, 1)]
    [[1.5]]
    """
    ordered = sorted(states, key=lambda state: state["rank"])
    if [state["rank"] for state in ordered] != list(range(ordered[0]["world_size"])):
        raise InputError(f"the states of all {ordered[0]['world_size']} ranks are needed, one each")
    if len({(position(state), state["scale"]) for state in ordered}) > 1:
        raise InputError("the states were saved at different steps")
    grid = grid or Grid.even(size, 1)
    whole = merge_parts([dict(state) for state in ordered], grid.sizes)
    resharded = reshard_buffers([state["buffers"] for state in whole], len(grid.machines))
    shared = {**whole[0], "world_size": size, "gain": widest(ordered)}
    mine = ((rank, resharded[grid.place(rank)[0]]) for rank in range(size))
    return [cut({**shared, "rank": rank, "buffers": kept}, grid, rank) for rank, kept in mine]


def position(state: Mapping[str, Any]) -> int:
    """Where all ranks stand together: at a step, or with local steps, which a rank may have made more of, a meeting."""
    return int(state["meeting"] if "meeting" in state else state["step"])


def reshard_buffers(saved: Sequence[Mapping[str, Any]], size: int) -> list[dict[str, dict[str, Any]]]:
    """All ranks' buffers as those of `size` ranks, with the same mean: the mean is what the model has not got yet.

    Old rank i's go to the new ranks r with r ≡ i modulo the old size, or, where there are fewer, to rank i mod size.

    >>> old = [{"w": {"residual": np.array([2.0 * rank])}} for rank in range(4)]
    >>> [new["w"]["residual"].tolist() for new in reshard_buffers(old, 2)]
    [[2.0], [4.0]]
    """
    return [share_of(saved, rank, size) for rank in range(size)]


def givers(rank: int, old: int, size: int) -> list[int]:
    """Whose buffers one of `size` ranks takes over, of `old`."""
    return list(range(rank, old, size)) if size <= old else [rank % old]


def share_of(saved: Sequence[Mapping[str, Any]], rank: int, size: int) -> dict[str, dict[str, Any]]:
    """One of `size` ranks' part of all ranks' buffers; only those of its `givers` are looked at."""
    old = len(saved)
    share_of_rank: dict[str, dict[str, Any]] = {}
    for giver in givers(rank, old, size):
        takers = 1 if size <= old else len(range(giver, size, old))
        for name, buffers in saved[giver].items():
            for buffer, kept in buffers.items():
                share = _scaled(kept, size / (old * takers))
                mine = share_of_rank.setdefault(name, {})
                mine[buffer] = _sum(mine[buffer], share) if buffer in mine else share
    return share_of_rank


def _scaled(kept: Any, factor: float) -> Any:
    if isinstance(kept, Mapping):
        return {**kept, "values": _scaled(kept["values"], factor)}
    return kept * kept.dtype.type(factor)


def _sum(a: Any, b: Any) -> Any:
    if not isinstance(a, Mapping):
        return a + b
    width = int(a["width"])
    indices = merged([a["indices"], b["indices"]])
    total = np.zeros((indices.size, width), a["values"].dtype)
    for part in (a, b):
        total[np.searchsorted(indices, part["indices"])] += part["values"].reshape(-1, width)
    return {**a, "indices": indices, "values": total.reshape(-1)}
