"""`Predictor`: the seconds of a step by each method, from the cost model and from what steps took before.

A method is dense, or one of the schemes. The model's seconds of a method that was run are corrected by measured /
modelled; those of a scheme that was not, like the other schemes'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from sparsewire.codecs.scheme import Scheme

from ..cost.model import NetworkSpeed
from ..cost.step import BucketTiming, Codecs, Compute, coding, dense_step, sparse_step
from .samples import CHANGED, WINDOW, lower
from .trial import LEAST

ALIKE = 1.5  # times: what is computed differs by more where the training has changed


@dataclass
class StepHistory:
    """The last steps of one method: the ratios of measured to modelled seconds, and what these steps computed.

    What the first of them computed stands for all, as long as the training is the same: it differs from check to check
    and from scheme to scheme, and would else set one method's history against another's.
    """

    compute: Compute | None = None
    ratios: list[float] = field(default_factory=list)
    byte: float = 0.0  # the network's seconds per byte at which they were measured

    @property
    def ratio(self) -> float | None:
        return lower(self.ratios) or None

    def is_like(self, compute: Compute) -> bool:
        """Whether it is the same training that computes this."""
        own, now = self.compute, compute.seconds
        return own is not None and own.numels == compute.numels and now / ALIKE <= own.seconds <= now * ALIKE

    def restart(self, compute: Compute) -> None:
        """Forgets the ratios: the training computes something else now."""
        self.compute, self.ratios = compute, []

    def add(self, ratios: Iterable[float], byte: float) -> None:
        """Adds ratios; those that were measured at another rate of the network are dropped."""
        if not self.byte / CHANGED <= byte <= self.byte * CHANGED:
            self.ratios = []
        self.byte = byte
        self.ratios = [*self.ratios, *ratios][-WINDOW:]

    def saved(self) -> dict[str, Any]:
        """The history as plain types."""
        own = self.compute
        computed = None if own is None else [own.rest, [list(astuple(bucket)) for bucket in own.buckets]]
        return {"compute": computed, "ratios": list(self.ratios), "byte": self.byte}

    @classmethod
    def loaded(cls, state: Mapping[str, Any]) -> StepHistory:
        own = state["compute"]
        compute = None if own is None else Compute(own[0], [BucketTiming(*bucket) for bucket in own[1]])
        return cls(compute, list(state["ratios"]), state.get("byte", 0.0))


class Predictor:
    """Method 0 is dense, method i the i-th scheme."""

    def __init__(self, plans: Sequence[Scheme], codecs: Mapping[Scheme, Codecs], size: int, late: bool) -> None:
        """`codecs` has what `coding(plan)` costs; `late`: schemes exchange after the last bucket."""
        self.methods: tuple[Scheme | None, ...] = (None, *plans)
        self.codecs = {plan: codecs[coding(plan)] for plan in plans}
        self.histories = [StepHistory() for _ in self.methods]
        self._size, self._late = size, late

    def predict(self, method: int, compute: Compute, steps: Iterable[float], network: NetworkSpeed) -> list[float]:
        """Seconds of a step by each method, after steps of one method that took so long."""
        own = self.histories[method]
        if method == 0 or not own.is_like(compute):
            own.restart(compute)
        modelled = [max(LEAST, self._model(index, compute, network)) for index in range(len(self.methods))]
        own.add([seconds / modelled[method] for seconds in steps], network.byte)
        return [seconds * factor for seconds, factor in zip(modelled, self._factors(), strict=True)]

    def _factors(self) -> list[float]:
        """Measured / modelled, of each method; a scheme that was never run has the mean of the others."""
        dense, *schemes = (history.ratio for history in self.histories)
        tried = [ratio for ratio in schemes if ratio]
        usual = sum(tried) / len(tried) if tried else 1.0
        return [dense or 1.0, *(ratio or usual for ratio in schemes)]

    def _model(self, method: int, compute: Compute, network: NetworkSpeed) -> float:
        """Backward takes longer while a scheme computes, so each method has its own: as long as the network stays the
        same, its steps are predicted to take what they took."""
        plan, history = self.methods[method], self.histories[method]
        if plan is None:
            return dense_step(history.compute or compute, network, self._size)
        own = history.compute if history.compute is not None and history.is_like(compute) else compute
        return sparse_step(plan, self.codecs[plan], own.late() if self._late else own, network, self._size)
