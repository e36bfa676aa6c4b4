"""`Saved`: an averager's state, read and checked, before anything goes on from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.codecs.contract import Memory
from sparsewire.errors import InputError

from ..guard import read_guard
from ..model_select import ModelSelect
from ..nodes.grid import Grid
from .gain import read_share
from .states import States

STATE_VERSION = 3


@dataclass(frozen=True)
class Saved:
    """All that an averager takes over."""

    step: int
    scale: float
    states: States
    selection: dict[str, Any]
    gain: dict[str, float]
    guard: dict[str, Any]

    @classmethod
    def read(cls, state: Mapping[str, Any], scale: float) -> Saved:
        """A state in the present scale of the loss."""
        states = States.read(state["buffers"], state.get("means", {}), state.get("rates", {}))
        selection, factor = ModelSelect(), scale / _scale(state["scale"])
        selection.load(state.get("selection", {}))
        if factor != 1:
            states.multiply(factor)
            selection.multiply(factor)
            if not states.is_finite():
                raise InputError(f"its numbers leave all bounds in the present loss scale, {scale}")
        gain, guard = read_share(state.get("gain", {})), read_guard(state.get("guard", {}), factor)
        return cls(whole(state["step"], "step"), scale, states, selection.saved(), gain, guard)


def whole(value: Any, what: str) -> int:
    """A number of steps, rounds or ranks."""
    if type(value) is not int or value < 0:
        raise InputError(f"the state has {value!r} as its {what}, not a whole number")
    return value


def _scale(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"the state has a loss scale of {value!r}")
    return float(value)


def check_state(state: Mapping[str, Any], rank: int, grid: Grid, memory: Memory) -> None:
    """Whether a saved state is this rank's and of this memory."""
    if not isinstance(state, Mapping):
        raise InputError(f"a state is a mapping, as state_dict() gives it, not {type(state).__name__}")
    if state.get("version") != STATE_VERSION:
        raise InputError(f"a sparsewire state of version {STATE_VERSION} is needed, not {state.get('version')!r}")
    here = _whose(rank, grid.size, grid.facts(rank))
    there = _whose(state["rank"], state["world_size"], state.get("nodes"))
    if there != here:
        raise InputError(
            f"this is the state of {there}, here is {here}: "
            "residuals are per rank; load(link, folder) picks or reshards them"
        )
    unknown = {buffer for kept in state["buffers"].values() for buffer in kept} - set(memory.buffers)
    if unknown:
        raise InputError(f"the state has {', '.join(sorted(unknown))}, which memory={memory} does not keep")


def check_sizes(state: Mapping[str, Any], sizes: Mapping[str, int], rank: int, grid: Grid) -> None:
    """Whether a saved state is of these tensors alone, which have so many elements each."""
    for name, buffers in state["buffers"].items():
        for kept in buffers.values():
            width = int(kept["width"]) if isinstance(kept, Mapping) else None
            size = kept.size if width is None else math.prod(kept["shape"])
            due = _part_size(sizes.get(name), rank, grid, width)
            if size != due:
                raise InputError(f"the state has {size} numbers for {name!r}, the model {due}")
    for name, mean in state.get("means", {}).items():
        last, due = int(np.max(mean["indices"], initial=-1)), _part_size(sizes.get(name), rank, grid)
        if due is None or last >= due:
            raise InputError(f"the state has a mean at {last} for {name!r}, the model {due} numbers")


def _part_size(size: int | None, rank: int, grid: Grid, width: int | None = None) -> int | None:
    """Numbers that a rank keeps of a tensor; tables are cut between rows."""
    if size is None:
        return None
    start, stop = grid.range(size, rank, width)
    return stop - start


def _whose(rank: int, size: int, part: Mapping[str, int] | None) -> str:
    whose = f"rank {rank} of {size}"
    if part is None:
        return whose
    cut = f" cut every {part['unit']} elements" if part["unit"] > 1 else ""
    return f"{whose}, which has part {part['part']} of {part['parts']}{cut} on machine {part['machine']}"
