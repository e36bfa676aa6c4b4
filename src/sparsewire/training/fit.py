"""Whether SGD and the scheme's memory fit, for any host: exactly one of them may hold the momentum."""

from __future__ import annotations

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.memory import NoMemory
from sparsewire.errors import InputError

from .notices import warn_once


def check_momentum(memory: Memory, momentum: float) -> None:
    """Refuses an SGD whose momentum is not the one that the memory holds; warns of one behind another memory."""
    held = memory.held_momentum
    if held is None:
        if momentum and not isinstance(memory, NoMemory):
            better = f"memory=gain(momentum={momentum:g})"
            warn_once(f"SGD's momentum {momentum:g} behind memory={memory} costs accuracy; write {better}")
    elif momentum not in (0.0, held):
        raise InputError(f"memory={memory} holds a momentum of {held:g}, SGD has {momentum:g}: make them equal")


def check_sgd(memory: Memory, momentum: float, nesterov: bool, dampening: float = 0.0) -> None:
    """The same, and refuses settings of SGD that do not go with the memory's, where the host adapts the optimizer."""
    check_momentum(memory, momentum)
    held = memory.held_momentum
    if held is None or not momentum:
        return
    if dampening:
        raise InputError(f"memory={memory} does not go with dampening={dampening:g}; set dampening=0")
    if nesterov != getattr(memory, "nesterov", False):
        name = memory.id if hasattr(memory, "nesterov") else "dgc"
        other = f"{name}(momentum={held:g}, nesterov={str(nesterov).lower()})"
        raise InputError(f"SGD has nesterov={nesterov}, memory={memory} has not the same; write memory={other}")
