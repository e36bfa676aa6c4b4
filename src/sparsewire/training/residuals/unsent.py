"""What sparse steps have not sent of a parameter, in a step in which it travels dense or has no gradient."""

from __future__ import annotations

from collections.abc import Container

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.scheme import Scheme
from sparsewire.kernels import Array

from ..layout import Segment, Slice
from ..places import assign, begin_alike, in_cache
from ..schedule import Settings
from .states import States


def with_unsent(
    item: Slice, x: Array, plan: Scheme, settings: Settings, states: States, unused: Container[str]
) -> Array:
    """What a parameter has to send in full: its gradient x, if it is used here, and what sparse steps have left of it.

    What is returned is x itself, or memory that holds until this thread needs it for another parameter.
    """
    if not _has_unsent(item, plan, settings, states, unused, left=False):
        return x
    return plan.memory.total(states.of(Segment((item,)), plan.memory.buffers, x), x)


def put_unsent(
    out: Array, item: Slice, x: Array, plan: Scheme, settings: Settings, states: States,
    unused: Container[str], left: bool,
) -> None:  # fmt: skip
    """Puts what `with_unsent` gives into other memory, or where x is, in a dense step.

    `left`: the optimizer goes on with its momentum, so the step leaves nothing in the buffers.
    """
    if not _has_unsent(item, plan, settings, states, unused, left):
        if not begin_alike(out, x):
            assign(out, x)
        return
    state = states.of(Segment((item,)), plan.memory.buffers, x)
    for part in in_cache(x):
        assign(out[part], plan.memory.total({name: kept[part] for name, kept in state.items()}, x[part]))


def reads_gradient(item: Slice, plan: Scheme, settings: Settings, left: bool) -> bool:
    """Whether `flush` reads the gradient or the mean of a dense step, as a memory with a momentum does."""
    memory = plan.memory
    own = memory.remembers_dense or type(memory).keep_dense is not Memory.keep_dense
    return own and bool(memory.buffers) and not left and settings.is_sparse(item.name, item.whole)


def flush(
    item: Slice, numbers: Array, mean: Array, plan: Scheme, settings: Settings, states: States, used: bool, left: bool
) -> None:  # fmt: skip
    """Clears what a parameter that travelled dense has sent; `used` and `left` are what `put_unsent` was given."""
    x, known = numbers[item.start : item.stop], item.name in states.by_name
    if _waits(used, plan, left) and known:
        return
    if not (plan.memory.buffers and settings.is_sparse(item.name, item.whole) and known):
        states.drop(item.name)
    elif left:
        states.clear(item.name)
    else:
        state = states.of(Segment((item,)), plan.memory.buffers, x)
        for part in in_cache(x):
            plan.memory.keep_dense({name: kept[part] for name, kept in state.items()}, x[part], mean[part])


def _has_unsent(
    item: Slice, plan: Scheme, settings: Settings, states: States, unused: Container[str], left: bool
) -> bool:
    known = plan.memory.remembers_dense and not left and settings.is_sparse(item.name, item.whole)
    return (known or item.name in states.by_name) and not _waits(item.name not in unused, plan, left)


def _waits(used: bool, plan: Scheme, left: bool) -> bool:
    """Whether what was not sent stays here: perhaps no rank used the parameter, and its mean will be dropped."""
    return (left or not plan.memory.remembers_dense) and not used
