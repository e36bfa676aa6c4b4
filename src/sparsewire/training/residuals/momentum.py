"""A step's means are remembered for the momentum of the next step.

They are sparse and the same on every rank. Two things are done with them:
- Where a memory puts the momentum in front of the selection, the mean M_t already holds it. The optimizer is handed
  M_t − momentum · M_{t−1}; its own momentum buffer then equals M_t. With a gain, M_t is that multiple of the mean. With
  a look-ahead, an optimizer without a momentum is handed M_t + momentum · (M_t − M_{t−1}).
- A memory that adds a share β of each mean to its buffers (`gmc`) means the movement of the weights by it,
  −(β/η_t)(w_t − w_{t−1}), which is β · (η_{t−1}/η_t) · M_{t−1}: when the learning rate η changes, the gradient gets the
  difference β · (η_{t−1}/η_t − 1) · M_{t−1}.

The other memories may follow the learning rate as well (`follow_rate`): what was not sent at the rate η is sent at η',
and moves the weights as far as it would have done if it is multiplied by η/η'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sparsewire import kernels
from sparsewire.codecs.contract import Memory
from sparsewire.kernels import Array

from ..layout import Buffer, without_gradient
from ..places import change_if_used, own_copy
from ..schedule import Settings
from .states import States
from .step_mean import StepMean


def rescale_residual(states: States, settings: Settings) -> None:
    """What waits keeps its weight when the learning rate has changed."""
    memory = settings.schedule.scheme.memory
    if settings.follow_rate and settings.rates is not None and memory.follows_rate:
        for name, rate in settings.rates().items():
            states.follow_rate(name, rate, memory.lead)


def apply_rate_change(buffer: Buffer, means: Mapping[str, StepMean], settings: Settings, memory: Memory) -> Buffer:
    """The buffer with what a change of the learning rate adds to its gradients; where there is none, it waits."""
    if not memory.kept_mean or settings.rates is None:
        return buffer
    rates = settings.rates()
    known = [(item, means[item.name]) for item in buffer.slices if item.name in means]
    changes = [(item, mean, memory.kept_mean * mean.change(rates.get(item.name))) for item, mean in known]
    if not any(factor for _, _, factor in changes):
        return buffer

    def add(numbers: Array) -> None:
        for item, mean, factor in changes:
            change_if_used(numbers[item.start : item.stop], partial(mean.add_to, factor=factor))

    return buffer.changed(add)


Left = Callable[[str], bool]
MeanEntries = tuple[Array | None, Array]  # indices and values; without indices, all numbers


def left_behind(settings: Settings, memory: Memory, dense: bool = True) -> Left:
    """Whether a step leaves a parameter's momentum to the optimizer: a dense step, if that has the same momentum."""
    if not (dense and memory.leaves_dense):
        return lambda name: False
    momenta = settings.momenta() if settings.momenta is not None else None
    return lambda name: momenta is None or momenta.get(name, 0.0) == memory.held_momentum


def to_optimizer(
    buffer: Buffer, numbers: Array, known: Mapping[str, MeanEntries], states: States, settings: Settings,
    memory: Memory, gain: float, left: Left,
) -> dict[str, StepMean | None]:  # fmt: skip
    """Puts what the optimizer gets into the means' places; with a gain, that multiple of them.

    Returns the means that the next step needs, by parameter; None for one that is not needed any longer. `known` are
    entries of means, or all of a dense one's numbers, in memory that nobody else writes to.
    """
    next_means: dict[str, StepMean | None] = {}
    momenta = settings.momenta() if settings.momenta is not None else None
    rates = settings.rates() if settings.rates is not None else {}
    waiting = [item for item in buffer.slices if left(item.name) and states.mean_before(item.name) is not None]
    unused = without_gradient(waiting, numbers)
    for item in buffer.slices:
        momentum = momenta.get(item.name, 0.0) if momenta is not None else memory.held_momentum
        back = momentum or memory.look_ahead
        if not settings.is_sparse(item.name, item.whole):
            continue
        mean, before = numbers[item.start : item.stop], states.mean_before(item.name)
        if left(item.name):
            if before is not None and item.name not in unused:  # else it waits, as what was not sent does
                before.add_to(mean, -back)
                next_means[item.name] = None
        elif back or (memory.kept_mean and rates):
            indices, values = _multiplied(mean, gain, known.get(item.name))
            next_means[item.name] = now = StepMean(indices, values, rates.get(item.name))
            if back and not momentum:
                now.add_to(mean, back)
            if back and before is not None:
                before.add_to(mean, -back)
        elif gain != 1:
            mean *= mean.dtype.type(gain)
    return next_means


def _multiplied(mean: Array, gain: float, known: MeanEntries | None) -> MeanEntries:
    """The entries of a mean, multiplied there as well; on a device nobody waits for their number."""
    if kernels.on_host(mean) and (known is None or gain != 1):
        known = kernels.of(mean).threshold(mean, 1)
    indices, values = known if known is not None else (None, own_copy(mean))
    if gain == 1:
        return indices, values
    if indices is None:
        values *= values.dtype.type(gain)
        mean *= mean.dtype.type(gain)
    else:
        values = values * values.dtype.type(gain)
        mean[indices] = values
    return indices, values
