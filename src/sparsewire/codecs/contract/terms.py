"""A compensated gradient as a sum of arrays, and what its memory is told of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array
from sparsewire.kernels.device import Energies, Energy
from sparsewire.kernels.scratch import scratch

Entries = tuple[Array, Array]  # ascending places, and the values there


@dataclass(frozen=True)
class Spread:
    """The sum of squares of a compensated gradient, and of the part of it that was sent, where a transform spreads
    that: it is what the rest lacks, as the transform is orthonormal."""

    whole: Energies
    rest: Energy

    def read(self) -> tuple[float, float]:
        (total, _), rest = self.whole.read(), self.rest.read()
        return total, max(0.0, total - rest)


class Feedback(Protocol):
    """What a memory is told after a finite step, element by element of the arrays that it is given."""

    @property
    def gain(self) -> float:
        """What the optimizer is handed of this step, as a multiple of the mean; 1 unless a training sets it."""

    @property
    def sent_entries(self) -> Entries | None:
        """This rank's part in the mean; None where a transform spreads it over all."""

    def arrived(self) -> Array | None:
        """Which of these entries are in the mean: of the others a rank keeps what was sent; None for all."""

    def subtract_sent(self, array: Array) -> None:
        """array −= this rank's part in the mean."""

    def add_mean(self, array: Array, factor: float) -> None:
        """array += factor × the mean over the ranks."""

    def mean_entries(self) -> tuple[Sequence[Entries], float] | None:
        """Entries whose sum, times the number, is the mean; None where a transform spreads it over all."""


@dataclass(frozen=True)
class Terms:
    """A compensated gradient that is a sum of arrays: decay · residual + gain · x.

    A velocity is moved on after each step, velocity ← momentum · velocity + x, and if `mask` says so zeroed where what
    was sent is in the mean and not kept by some rank. What the next step adds of it, lead · velocity, is put into the
    residual at once, so that the selection reads no third array.
    """

    residual: Array
    decay: float = 1.0
    gain: float = 1.0
    velocity: Array | None = None
    momentum: float = 0.0
    lead: float = 0.0
    mask: bool = False

    def total(self, x: Array) -> Array:
        """The sum, in memory that holds until this thread needs it for another one."""
        if not kernels.on_host(x):
            return kernels.of(x).total(self.residual, x, self.decay, self.gain)
        kind, out = x.dtype.type, scratch(x.size, x.dtype)
        with np.errstate(all="ignore"):
            np.multiply(kind(self.gain), x, out=out)
            return np.add(self.residual if self.decay == 1 else kind(self.decay) * self.residual, out, out=out)

    def keep(self, x: Array, feedback: Feedback) -> None:
        """Puts the sum without what was sent into the residual and moves the velocity on, in one pass."""
        (indices, values), waiting = _sent(x, feedback, apart=self.mask)
        kernels.of(x).compensate(
            self.residual, x, indices, values, self.decay, self.gain, self.velocity, self.momentum,
            self.lead, self.mask,
        )  # fmt: skip
        self._take(waiting, feedback)

    def keep_share(self, x: Array, feedback: Feedback, share: float) -> Energies:
        """Puts residual + x without what was sent, and with a share of the mean, into the residual, in one pass."""
        (indices, values), waiting = _sent(x, feedback, apart=True)
        parts, factor = feedback.mean_entries() or ((), 1.0)
        measured = kernels.of(x).compensate_mean(self.residual, x, indices, values, parts, share * factor)
        self._take(waiting, feedback)
        if feedback.sent_entries is not None:
            return measured
        spread = Spread(measured, kernels.of(x).energy(self.residual))
        feedback.add_mean(self.residual, share)
        return spread

    def _take(self, waiting: Entries | None, feedback: Feedback) -> None:
        """Takes off what a pass over the residual has left of what was sent."""
        if waiting is not None:
            kernels.of(self.residual).scatter_add(self.residual, *waiting, -1.0)
        if feedback.sent_entries is None:
            feedback.subtract_sent(self.residual)


def _sent(x: Array, feedback: Feedback, apart: bool) -> tuple[Entries, Entries | None]:
    """This rank's entries, none where a transform spreads them; those that some rank keeps `apart`, if asked for."""
    sent = feedback.sent_entries
    if sent is None:
        return (np.empty(0, np.int32), np.empty(0, x.dtype)), None
    arrived = feedback.arrived() if apart else None
    if arrived is None:
        return sent, None
    indices, values = sent
    return (indices[arrived], values[arrived]), (indices[~arrived], values[~arrived])


def set_product(out: Array, array: Array, factor: float) -> None:
    """out ← factor · array."""
    if kernels.on_host(out):
        np.multiply(array, out.dtype.type(factor), out=out)
    else:
        out[:] = array
        out *= out.dtype.type(factor)
