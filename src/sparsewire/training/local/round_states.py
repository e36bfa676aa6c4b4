"""What training with local steps saves: the averager's state, the common weights, and in mid-round this rank's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from sparsewire.core.statefile import is_finite, reading
from sparsewire.errors import InputError
from sparsewire.kernels import Array

from ..nodes.grid import Grid
from ..nodes.shards import ShardGrid
from ..residuals.reshard import reshard as reshard_states
from ..residuals.reshard import reshard_buffers
from ..residuals.saved import Saved, whole
from .rounds import Counts, Rounds, Weights


def save(rounds: Rounds, local: Weights) -> dict[str, Any]:
    """This rank's state: copies, in arrays and plain types. `local` are its weights as they are now."""
    return {
        **rounds.averager.state_dict(),
        "step": rounds.total,
        "meeting": rounds.meeting,
        "counts": asdict(rounds.counts),
        "common": {name: array.copy() for name, array in rounds.common.items()},
        "outer": {name: {key: kept.copy() for key, kept in buffers.items()} for name, buffers in rounds.outer.items()},
        "local": {name: array.copy() for name, array in local.items()} if rounds.counts.changed else {},
        "pending": {},
    }


@dataclass(frozen=True)
class SavedRounds:
    """All that `take_over` needs, checked. `local` is empty where the weights are the common ones."""

    averager: Saved
    meeting: int
    counts: Counts
    common: dict[str, Array]
    outer: dict[str, dict[str, Array]]
    local: dict[str, Array]


def read(rounds: Rounds, state: Mapping[str, Any]) -> SavedRounds:
    """This rank's saved state, checked. Nothing changes before `take_over`."""
    with reading():
        if "common" not in state:
            raise InputError("this is a state of attach, not of local_steps: the common weights are missing")
        like = rounds.common
        common = weights_like(like, state["common"])
        _check_outer(rounds, state["outer"])
        return SavedRounds(
            averager=rounds.averager.read_state({**state, "step": state["meeting"]}),
            meeting=whole(state["meeting"], "meeting"),
            counts=_counts(state["counts"]),
            common=common,
            outer={name: {key: weights_like(like, {name: array}, False)[name] for key, array in kept.items()}
                   for name, kept in state["outer"].items()},
            local=weights_like(like, state["local"]) if state["local"] else {},
        )  # fmt: skip


def take_over(rounds: Rounds, saved: SavedRounds) -> dict[str, Array]:
    """Goes on from what `read` gave; the weights that this rank's model takes."""
    rounds.averager.take_over(saved.averager)
    rounds.abandon()
    rounds.meeting, rounds.counts = saved.meeting, replace(saved.counts)
    rounds.common, rounds.outer = saved.common, saved.outer
    return saved.local or {name: rounds.given(name) for name in rounds.common}


def load(rounds: Rounds, state: Mapping[str, Any]) -> dict[str, Array]:
    """Both at once, on this rank alone."""
    return take_over(rounds, read(rounds, state))


def weights_like(like: Weights, saved: Mapping[str, Any], every: bool = True) -> dict[str, Array]:
    """Copies of saved arrays, in the order of the model's; they have its sizes and number types, and are finite."""
    for name in {**like, **saved} if every else saved:
        have, due = saved.get(name), like.get(name)
        sizes = [None if array is None else getattr(array, "size", type(array).__name__) for array in (have, due)]
        if have is None or due is None or sizes[0] != sizes[1]:
            raise InputError(f"the state has {sizes[0]} numbers for {name!r}, the model {sizes[1]}")
        if have.dtype != due.dtype:
            raise InputError(f"the state has {have.dtype} for {name!r}, the model {due.dtype}")
        if not is_finite(have):
            raise InputError(f"the state has non-finite numbers for {name!r}")
    return {name: np.array(saved[name]).reshape(-1) for name in like if name in saved}


def _check_outer(rounds: Rounds, outer: Mapping[str, Mapping[str, Any]]) -> None:
    for name, kept in outer.items():
        if set(kept) != set(rounds.plan.outer.buffers):
            raise InputError(
                f"the state has {', '.join(kept)} for {name!r}, which outer={rounds.plan.outer} does not keep"
            )


def _counts(saved: Mapping[str, Any]) -> Counts:
    numbers = {name: whole(saved[name], name) for name in ("steps", "agreed", "nonfinite")}
    return Counts(**numbers, changed=bool(saved["changed"]))


# --- another number of ranks ---


def reshard(saved: Sequence[Mapping[str, Any]], size: int, grid: Grid | None = None) -> list[dict[str, Any]]:
    """All ranks' states as those of `size` ranks, of a training with local steps or without.

    Residuals are resharded so that their mean stays. In mid-round the change that each rank's weights have made is
    resharded in the same way: with half as many ranks each goes on from the mean of two.
    """
    if "common" in saved[0] and (isinstance(grid, ShardGrid) or saved[0].get("nodes")):
        return _reshard_shards(saved, grid)
    resharded = [_with_counts(state, saved) for state in reshard_states(saved, size, grid)]
    if not any(state.get("local") for state in saved):
        return resharded
    ordered = sorted(saved, key=lambda state: state["rank"])
    changes = reshard_buffers([_changes(state) for state in ordered], size)
    common = ordered[0]["common"]
    local = [{name: common[name] - change["local"] for name, change in mine.items()} for mine in changes]
    return [{**state, "local": mine, "pending": {}} for state, mine in zip(resharded, local, strict=True)]


def _reshard_shards(saved: Sequence[Mapping[str, Any]], grid: Grid | None) -> list[dict[str, Any]]:
    """Shard by shard: the ranks that have the same shard are a training of their own."""
    parts = {(state.get("nodes") or {"parts": 1})["parts"] for state in saved}
    if not isinstance(grid, ShardGrid) or parts != {grid.parts}:
        here = 1 if grid is None else grid.parts
        raise InputError(
            f"local_steps with {max(parts)} shards was saved, here are {here}: resume it with as many shards"
        )
    by_rank: dict[int, dict[str, Any]] = {}
    for part in range(grid.parts):
        mine = [state for state in saved if (state.get("nodes") or {"part": 0})["part"] == part]
        ranks = [machine[part] for machine in grid.machines]
        replicas = sorted(mine, key=lambda state: int((state.get("nodes") or {"machine": state["rank"]})["machine"]))
        alone = [{**state, "rank": rank, "world_size": len(mine), "nodes": None} for rank, state in enumerate(replicas)]
        for rank, state in zip(ranks, reshard(alone, len(ranks)), strict=True):
            by_rank[rank] = grid.labelled(state, rank)
    return [by_rank[rank] for rank in range(grid.size)]


def _with_counts(state: dict[str, Any], saved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ranks may have made different numbers of local steps; those who take over have all made as many as the most."""
    if "counts" not in state:
        return state
    most = max(saved, key=lambda state: int(state["step"]))
    counts = {**most["counts"], "changed": any(state["counts"]["changed"] for state in saved)}
    return {**state, "step": most["step"], "counts": counts}


def _changes(state: Mapping[str, Any]) -> dict[str, dict[str, Array]]:
    """What a rank's weights have moved away from the common ones, once an exchange on its way has come in."""
    common, local = state["common"], settled(state) or state["common"]
    return {name: {"local": common[name] - local[name]} for name in common}


def settled(state: Mapping[str, Any]) -> dict[str, Array]:
    """A rank's own weights; those whose exchange is on its way as they will be when it comes in."""
    local, pending = dict(state["local"]), state.get("pending") or {"then": {}, "mix": 0.0, "finite": True}
    if not pending["finite"]:
        return dict(state["common"])
    for name, then in pending["then"].items():
        local[name] = state["common"][name] + then.dtype.type(pending["mix"]) * (local[name] - then)
    return local
