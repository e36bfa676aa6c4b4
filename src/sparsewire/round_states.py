"""What training with local steps saves: the averager's state, the common weights, and in mid-round this rank's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from .deal import deal as deal_states
from .deal import deal_buffers
from .errors import InputError
from .grid import Grid
from .kernels import Array
from .rounds import Counts, Rounds, Weights


def save(rounds: Rounds, local: Weights) -> dict[str, Any]:
    """This rank's state: copies, in arrays and plain types. `local` are its weights as they are now."""
    return {
        **rounds.averager.state_dict(),
        "step": rounds.total,
        "meeting": rounds.meeting,
        "counts": asdict(rounds.counts),
        "common": {name: array.copy() for name, array in rounds.common.items()},
        "outer": {name: {key: kept.copy() for key, kept in found.items()} for name, found in rounds.outer.items()},
        "local": {name: array.copy() for name, array in local.items()} if rounds.counts.changed else {},
        "pending": {},
    }


def load(rounds: Rounds, state: Mapping[str, Any]) -> dict[str, Array]:
    """Goes on from a saved state; the weights that this rank's model takes."""
    if "common" not in state:
        raise InputError("this is a state of attach, not of local_steps: the common weights are missing")
    sizes = {name: array.size for name, array in rounds.common.items()}
    for part in ("common", "local"):
        _check(state[part], sizes, whole=bool(state[part]) or part == "common")
    for name, kept in state["outer"].items():
        for array in kept.values():
            _check({name: array}, sizes)
        if set(kept) - set(rounds.plan.outer.buffers):
            raise InputError(
                f"the state has {', '.join(kept)} for {name!r}, which outer={rounds.plan.outer} does not keep"
            )
    rounds.averager.load_state_dict({**state, "step": state["meeting"]})
    rounds.abandon()
    rounds.meeting, rounds.counts = int(state["meeting"]), Counts(**state["counts"])
    rounds.common = {name: np.array(state["common"][name]) for name in rounds.common}
    rounds.outer = {name: {key: np.array(a) for key, a in kept.items()} for name, kept in state["outer"].items()}
    return {name: np.array(a) for name, a in state["local"].items()} or {name: rounds.given(name) for name in sizes}


def _check(found: Mapping[str, Array], sizes: Mapping[str, int], whole: bool = False) -> None:
    for name in {**sizes, **found} if whole else found:
        have = found[name].size if name in found else None
        if sizes.get(name) != have:
            raise InputError(f"the state has {have} numbers for {name!r}, the model {sizes.get(name)}")


# --- another number of ranks ---


def deal(saved: Sequence[Mapping[str, Any]], size: int, grid: Grid | None = None) -> list[dict[str, Any]]:
    """All ranks' states as those of `size` ranks, of a training with local steps or without.

    Residuals are dealt out so that their mean stays. In mid-round the change that each rank's weights have made is
    dealt out in the same way: with half as many ranks each goes on from the mean of two.
    """
    dealt = deal_states(saved, size, grid)
    if not any(state.get("local") for state in saved):
        return dealt
    ordered = sorted(saved, key=lambda state: state["rank"])
    changes = deal_buffers([_changes(state) for state in ordered], size)
    common = ordered[0]["common"]
    local = [{name: common[name] - change["local"] for name, change in mine.items()} for mine in changes]
    return [{**state, "local": mine, "pending": {}} for state, mine in zip(dealt, local, strict=True)]


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
