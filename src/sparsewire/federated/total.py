"""The weighted sum of the clients' changes, taken up one by one: no message is made dense, none is kept.

Sums are in float64, in the order in which the messages came. With Σ n and Σ n·v over an entry's senders and N over all
clients that are counted, the mean is, as in `sparsewire.exchange.combine`,

    all       Σ n·v / N
    senders   Σ n·v / Σ n
    sqrt      Σ n·v / √(N · Σ n)

Whole numbers are summed as differences to the first client's: what all clients agree on stays exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.registry import nearest
from sparsewire.core.sparse import Sparse, elements, work_dtype
from sparsewire.errors import InputError
from sparsewire.exchange.combine import RULES
from sparsewire.kernels import Array

from .coding import Coder
from .model import TensorInfo


class Total:
    """Σ n·v of every entry of every tensor, in the domain in which they were sent, and Σ n where the rule needs it."""

    def __init__(self, tensors: Sequence[TensorInfo], coder: Coder, rule: str) -> None:
        if rule not in RULES:
            raise InputError(f"mean is one of {', '.join(RULES)}, not {rule!r}{nearest(str(rule), RULES)}")
        self.tensors, self.coder, self.rule = tensors, coder, rule
        self.clear()

    def clear(self) -> None:
        self.weight = 0.0
        self.sums: dict[str, Array] = {}
        self.senders: dict[str, Array] = {}
        self.pivots: dict[str, Array] = {}

    def add(self, parts: Sequence[Sparse], weight: float, scale: float = 1.0) -> None:
        """One client's change, its weights multiplied by `scale`; whole numbers stay as they are."""
        for info, part in zip(self.tensors, parts, strict=True):
            if info.is_whole:
                self._add_whole(info, part.flat(), weight)
            else:
                self._add(info, part, weight, scale)
        self.weight += weight

    def _add_whole(self, info: TensorInfo, change: Array, weight: float) -> None:
        pivot = self.pivots.setdefault(info.name, change)
        self.sums[info.name] = self.sums.get(info.name, 0.0) + weight * (change - pivot)

    def _add(self, info: TensorInfo, part: Sparse, weight: float, scale: float) -> None:
        where, size = elements(part.indices, part.width), part.size * part.width
        total = self.sums.setdefault(info.name, np.zeros(0))
        if total.size != size:
            total = self.sums[info.name] = np.zeros(size)
        kernels.scatter_add(total, where, part.work_values.astype(np.float64), weight * scale)
        if self.rule != "all" and not info.dense:
            counts = self.senders.setdefault(info.name, np.zeros(size))
            kernels.scatter_add(counts, where, np.ones(where.size), weight)

    def means(self) -> dict[str, Array]:
        """The mean changes, flat and in the work dtype; `add` has been called at least once."""
        return {info.name: self._mean(info) for info in self.tensors}

    def _mean(self, info: TensorInfo) -> Array:
        total, counts = self.sums[info.name], self.senders.get(info.name)
        with np.errstate(all="ignore"):
            mean = total / (self.weight if counts is None else self._divisor(counts)) + self.pivots.get(info.name, 0.0)
            mean = mean.astype(work_dtype(info.dtype))
        transform = self.coder.scheme_of(info).transform.fitted(self.coder.shape_of(info))
        return mean if transform.is_identity else transform.inverse(mean, info.size)

    def _divisor(self, counts: Array) -> Array:
        senders = np.where(counts > 0, counts, 1.0)
        return senders if self.rule == "senders" else np.sqrt(self.weight * senders)

    # --- saving ---

    def state_dict(self) -> dict[str, Any]:
        arrays = {"sums": self.sums, "senders": self.senders, "pivots": self.pivots}
        return {"weight": self.weight, **{name: dict(by_tensor) for name, by_tensor in arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; what it cannot have given is an `InputError`."""
        self.weight = float(state["weight"])
        self.sums, self.senders, self.pivots = (dict(state[name]) for name in ("sums", "senders", "pivots"))
        summed = [info for info in self.tensors if self.weight]
        weighed = [info for info in summed if self.rule != "all" and not info.dense]
        fits = self._fits(self.sums, summed) and self._fits(self.senders, weighed)
        fits = fits and self._fits(self.pivots, [info for info in summed if info.is_whole])
        if not 0 <= self.weight < math.inf or not fits:
            raise InputError("the saved sums are not those of the model's tensors")

    def _fits(self, arrays: Mapping[str, Array], tensors: Sequence[TensorInfo]) -> bool:
        sizes = {info.name: (self.coder.domain_size(info),) for info in tensors}
        return {name: array.shape for name, array in arrays.items()} == sizes and all(
            array.dtype == np.float64 for array in arrays.values()
        )
