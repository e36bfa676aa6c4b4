"""The feedback from an exchange to a memory: dense, or at the entries of a sparse tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Entries
from sparsewire.core.sparse import Sparse, elements
from sparsewire.kernels import Array


class Delivery(Protocol):
    """What became of a tensor that was sent: an exchange's outcome has it."""

    @property
    def sent(self) -> Sparse:
        """This rank's part in the mean."""

    def arrived(self) -> Array | None:
        """Which entries of `sent` are in the mean; None for all."""

    def mean_sparse(self) -> Sparse:
        """The mean where any rank sent something."""

    def mean_parts(self) -> tuple[Sequence[Sparse], float]:
        """Tensors whose sum, times the number, is the mean."""


@dataclass(frozen=True)
class _Feedback:
    delivery: Delivery
    gain: float = 1.0

    @property
    def sent(self) -> Sparse:
        return self.delivery.sent

    def arrived(self) -> Array | None:
        entries = self.delivery.arrived()
        return entries if entries is None else np.repeat(entries, self.sent.width)


class DenseFeedback(_Feedback):
    """Feedback about a dense tensor."""

    @property
    def sent_entries(self) -> Entries | None:
        if self.sent.transform is not None:
            return None
        return elements(self.sent.indices, self.sent.width), self.sent.work_values

    def subtract_sent(self, array: Array) -> None:
        entries = self.sent_entries
        if entries is not None:
            kernels.of(array).scatter_add(array, *entries, -1.0)
        else:
            array -= self.sent.flat_beside(array)

    def add_mean(self, array: Array, factor: float) -> None:
        mean = self.delivery.mean_sparse()
        if mean.transform is None:
            kernels.of(array).scatter_add(array, elements(mean.indices, mean.width), mean.work_values, factor)
        else:
            added = mean.flat_beside(array)
            added *= array.dtype.type(factor)
            array += added

    def mean_entries(self) -> tuple[Sequence[Entries], float] | None:
        if self.sent.transform is not None:
            return None
        parts, factor = self.delivery.mean_parts()
        return [(elements(part.indices, part.width), part.work_values) for part in parts], factor


@dataclass(frozen=True)
class SparseFeedback(_Feedback):
    """Feedback about the entries `where` of a sparse tensor."""

    where: Array = field(kw_only=True)

    @property
    def sent_entries(self) -> Entries | None:
        return elements(np.searchsorted(self.where, self.sent.indices), self.sent.width), self.sent.work_values

    def subtract_sent(self, array: Array) -> None:
        with np.errstate(all="ignore"):
            array -= self.sent.at(self.where)

    def add_mean(self, array: Array, factor: float) -> None:
        array += self.delivery.mean_sparse().at(self.where) * array.dtype.type(factor)

    def mean_entries(self) -> tuple[Sequence[Entries], float]:
        mean = self.delivery.mean_sparse().at(self.where)
        return [(np.arange(mean.size), mean)], 1.0
