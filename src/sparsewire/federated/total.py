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
from .model import Tensor


class Total:
    """Σ n·v of every entry of every tensor, in the domain in which they were sent, and Σ n where the rule needs it."""

    def __init__(self, tensors: Sequence[Tensor], coder: Coder, rule: str) -> None:
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
        for one, part in zip(self.tensors, parts, strict=True):
            if one.is_whole:
                self._add_whole(one, part.flat(), weight)
            else:
                self._add(one, part, weight, scale)
        self.weight += weight

    def _add_whole(self, one: Tensor, change: Array, weight: float) -> None:
        pivot = self.pivots.setdefault(one.name, change)
        self.sums[one.name] = self.sums.get(one.name, 0.0) + weight * (change - pivot)

    def _add(self, one: Tensor, part: Sparse, weight: float, scale: float) -> None:
        where, size = elements(part.indices, part.width), part.size * part.width
        total = self.sums.setdefault(one.name, np.zeros(0))
        if total.size != size:
            total = self.sums[one.name] = np.zeros(size)
        kernels.scatter_add(total, where, part.work_values.astype(np.float64), weight * scale)
        if self.rule != "all" and not one.plain:
            counts = self.senders.setdefault(one.name, np.zeros(size))
            kernels.scatter_add(counts, where, np.ones(where.size), weight)

    def means(self) -> dict[str, Array]:
        """The mean changes, flat and in the work dtype; `add` has been called at least once."""
        return {one.name: self._mean(one) for one in self.tensors}

    def _mean(self, one: Tensor) -> Array:
        total, counts = self.sums[one.name], self.senders.get(one.name)
        with np.errstate(all="ignore"):
            mean = total / (self.weight if counts is None else self._divisor(counts)) + self.pivots.get(one.name, 0.0)
            mean = mean.astype(work_dtype(one.dtype))
        transform = self.coder.scheme_of(one).transform.fitted(self.coder.shape_of(one))
        return mean if transform.is_identity else transform.inverse(mean, one.size)

    def _divisor(self, counts: Array) -> Array:
        some = np.where(counts > 0, counts, 1.0)
        return some if self.rule == "senders" else np.sqrt(self.weight * some)

    # --- saving ---

    def state_dict(self) -> dict[str, Any]:
        arrays = {"sums": self.sums, "senders": self.senders, "pivots": self.pivots}
        return {"weight": self.weight, **{name: dict(found) for name, found in arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave; what it cannot have given is an `InputError`."""
        self.weight = float(state["weight"])
        self.sums, self.senders, self.pivots = (dict(state[name]) for name in ("sums", "senders", "pivots"))
        summed = [one for one in self.tensors if self.weight]
        weighed = [one for one in summed if self.rule != "all" and not one.plain]
        fits = self._fits(self.sums, summed) and self._fits(self.senders, weighed)
        fits = fits and self._fits(self.pivots, [one for one in summed if one.is_whole])
        if not 0 <= self.weight < math.inf or not fits:
            raise InputError("the saved sums are not those of the model's tensors")

    def _fits(self, found: Mapping[str, Array], tensors: Sequence[Tensor]) -> bool:
        sizes = {one.name: (self.coder.domain_size(one),) for one in tensors}
        return {name: array.shape for name, array in found.items()} == sizes and all(
            array.dtype == np.float64 for array in found.values()
        )
