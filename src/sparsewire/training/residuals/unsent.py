"""What sparse steps have not sent of a parameter, in a step in which it travels dense or has no gradient."""

from __future__ import annotations

from collections.abc import Container

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Scheme
from sparsewire.kernels import Array

from ..layout import Segment, Slice
from ..schedule import Settings
from .states import States


def with_unsent(
    item: Slice, x: Array, plan: Scheme, settings: Settings, states: States, unused: Container[str], left: bool = False
) -> Array:
    """What a parameter has to send in full: its gradient x, if it is used here, and what sparse steps have left of it.

    `left`: the optimizer goes on with its momentum, so the step leaves nothing in the buffers. What is returned is x
    itself, or memory that holds until this thread needs it for another parameter.
    """
    known = plan.memory.remembers_dense and not left and settings.is_sparse(item.name, item.whole)
    if not known and item.name not in states.by_name:
        return x
    if _waits(item.name not in unused, plan, left):
        return x
    return plan.memory.total(states.of(Segment((item,)), plan.memory.buffers, x), x)


def reads_gradient(item: Slice, plan: Scheme, settings: Settings, left: bool) -> bool:
    """Whether `flush` reads the gradient or the mean of a dense step, as a memory with a momentum does."""
    memory = plan.memory
    own = memory.remembers_dense or type(memory).keep_dense is not Memory.keep_dense
    return own and bool(memory.buffers) and not left and settings.is_sparse(item.name, item.whole)


def flush(
    item: Slice, numbers: Array, mean: Array, plan: Scheme, settings: Settings, states: States, used: bool, left: bool
) -> None:  # fmt: skip
    """Clears what a parameter that travelled dense has sent; `used` and `left` are what `with_unsent` was given."""
    x, known = numbers[item.start : item.stop], item.name in states.by_name
    if _waits(used, plan, left) and known:
        return
    if not (plan.memory.buffers and settings.is_sparse(item.name, item.whole) and known):
        states.drop(item.name)
    elif left:
        states.clear(item.name)
    else:
        plan.memory.keep_dense(states.of(Segment((item,)), plan.memory.buffers, x), x, mean)


def _waits(used: bool, plan: Scheme, left: bool) -> bool:
    """Whether what was not sent stays here: perhaps no rank used the parameter, and its mean will be dropped."""
    return (left or not plan.memory.remembers_dense) and not used
