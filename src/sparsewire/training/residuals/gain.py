"""The gain of a training's steps, for a memory that has one (`memory=gain`).

1. After a finite sparse step, k is the share of the compensated gradient's energy (sum of squares) that was sent, over
   all compressed parameters of this rank; after a dense step k = 1.
2. k̂ ← max(k, 0.98 · k̂ + 0.02 · k): a rise counts at once, a fall slowly.
3. Each rank's own gain is 1/√k̂ within 1 … largest, and 1 as long as no k is known.
4. The next step's gain is the mean of the ranks' own. They travel behind the step's first message, or beside what is
   dense; a step that has neither has an all_reduce of one number for it.

A rank's own gain is rounded to 1/1024, so that sums of up to a thousand are exact: the same bits in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.codecs.contract import Memory
from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.kernels.device import Energies

FOLLOW = 0.02  # how much of a smaller share counts in each step
STEPS = 1024  # to which a gain is rounded, in 1


class StepGain:
    """The share of the energy that this rank sends, and the gain that the ranks agreed on; 1 for other memories."""

    def __init__(self, memory: Memory) -> None:
        self.largest = memory.largest_gain
        self.now = 1.0
        self._known: tuple[float, _Step | None] = (0.0, None)  # a share of 0 is not known; the step that changes it
        self.agreed_on = False  # whether the ranks' gains have travelled in this step
        self._measured: list[Energies] = []

    @property
    def share(self) -> float:
        """As the last step left it. Energies of a device have crossed with what the next step selects."""
        share, step = self._known
        if step is not None:
            share = step.followed(share)
            self._known = share, None
        return share

    @property
    def own(self) -> float:
        """This rank's, as its last steps were."""
        if self.largest is None or not self.share:
            return 1.0
        return round(STEPS * min(max(self.share**-0.5, 1.0), self.largest)) / STEPS

    def message(self, others: Sequence[Array], sparse: bool) -> list[Array]:
        """What travels with the arrays that are averaged, in the number type of one of them."""
        if self.largest is None or not sparse:
            return []
        return [np.array([self.own], others[0].dtype if others else np.float64)]

    def agreed(self, message: Sequence[Array]) -> float:
        """The gain that the ranks' averaged messages tell."""
        return float(message[0][0]) if message else 1.0

    def note(self, energy: Energies | None) -> None:
        """What a tensor's memory measured in this step."""
        if energy is not None:
            self._measured.append(energy)

    def follow(self, dense: bool) -> None:
        """After a finite step the share follows, once it is asked for."""
        if self.largest is not None:
            self._known = self.share, _Step(dense, tuple(self._measured))

    def clear(self) -> None:
        """Ends a step."""
        self._measured, self.agreed_on = [], False

    # --- saving ---

    def stats(self) -> dict[str, Any]:
        return {} if self.largest is None else {"gain": {"step": self.now, "share": self.share}}

    def saved(self) -> dict[str, float]:
        return {"share": self.share}

    def load(self, saved: Mapping[str, float]) -> None:
        """Takes over what `saved` gave."""
        self._known = saved["share"], None


@dataclass(frozen=True)
class _Step:
    """A finite step: whether it was dense, and what was measured of its tensors, which may have come in any order."""

    dense: bool
    measured: tuple[Energies, ...]

    def followed(self, share: float) -> float:
        """The share behind this step."""
        energies = [energy.read() for energy in self.measured]
        total, sent = math.fsum(energy[0] for energy in energies), math.fsum(energy[1] for energy in energies)
        if not self.dense and not 0 < total < math.inf:
            return share
        now = 1.0 if self.dense else min(1.0, sent / total)
        return max(now, share + FOLLOW * (now - share))


def read_share(saved: Mapping[str, Any]) -> dict[str, float]:
    """What `saved` gave, checked; a state of another memory tells no share."""
    share = saved.get("share", 0.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(f"the state has {share!r} for the share of the energy that is sent; it lies in 0 … 1")
    return {"share": float(share)}


def widest(states: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The largest share, for ranks that take over from others: the gain that is safe for all of them."""
    return {"share": max(float(state.get("gain", {}).get("share", 0.0)) for state in states)}
