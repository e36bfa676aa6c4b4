"""A slice of a tensor that travels to the rank that owns it.

This rank's part in the mean is what it passes on of a slice, less what it received of it. So whatever a cut drops or a
codec loses here stays in this rank's residual, and over all ranks together nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from sparsewire import kernels
from sparsewire.codecs.contract import Context
from sparsewire.codecs.scheme import Scheme
from sparsewire.core.rng import derive_key
from sparsewire.core.sparse import Sparse, held, magnitudes, merged, work_dtype
from sparsewire.frames.seal import Sealed, Selection, seal
from sparsewire.kernels import Array

from ..combine import add_up


class Block:
    """The entries start … stop − 1 of a tensor, with indices from 0: this rank's selection and what others passed on.

    It travels as a mean over the `ranks` whose parts are in it: so its numbers keep their size, whatever the dtype.
    """

    def __init__(self, selection: Selection, start: int, stop: int, dtype: str) -> None:
        low, high = np.searchsorted(selection.indices, (start, stop))
        width = selection.width
        self.start, self.ranks, self.dtype = start, 1, dtype
        self._own = Selection(
            (selection.indices[low:high] - start).astype(kernels.index_dtype(stop - start), copy=False),
            selection.values[low * width : high * width],
            lambda at: selection.at(at.astype(np.int64) + start),
            ((stop - start) * width,),
            width,
        )
        self._parts: list[tuple[Sparse, int]] = []

    @property
    def kind(self) -> Sparse:
        """Which tensor it is a slice of, in frames: one without a transform."""
        return self._sparse(self._own.indices[:0], self._own.values[:0], self.dtype)

    def add(self, part: Sparse, ranks: int) -> None:
        """What another rank passed on: the mean over so many ranks."""
        self._parts.append((part, ranks))
        self.ranks += ranks

    def seal(self, scheme: Scheme, ctx: Context) -> Sealed:
        """Cuts the block and codes it; from now on `passed` and `sent` are known."""
        own_key = derive_key(ctx.own_key, self.start)
        ctx = replace(ctx, numel=self.kind.size, own_key=own_key)
        sealed = seal(scheme.untransformed, ctx, self._cut() if self._parts else self._own)
        self.passed = sealed.sent
        return sealed

    @cached_property
    def sent(self) -> Sparse:
        """This rank's part in the mean, negative where it keeps for others; in the work dtype, so not rounded."""
        if not self._parts:
            return self._sparse(self.passed.indices, self.passed.work_values, work_dtype(self.dtype).name)
        return self._sum([self.passed, self._got], [self.ranks, -1])

    @cached_property
    def _got(self) -> Sparse:
        """What arrived, added up."""
        return self._sum([part for part, _ in self._parts], [ranks for _, ranks in self._parts])

    def _cut(self) -> Selection:
        """As many entries as a rank has on average, those of the largest sums.

        An entry that is here anyway takes this rank's number along, selected or not: that costs no byte.
        """
        where = merged([self._own.indices, self._got.indices])
        numbers = self._mean_at(where)
        if self._due < where.size:
            largest, _ = kernels.topk(magnitudes(numbers, self._own.width), self._due)
            where, numbers = where[largest], numbers.reshape(-1, self._own.width)[largest].reshape(-1)
        return replace(self._own, indices=where, values=numbers, at=self._mean_at)

    def _mean_at(self, where: Array) -> Array:
        with np.errstate(all="ignore"):
            total = self._own.at(where) + self._got.at(where)
            return total / total.dtype.type(self.ranks)

    @property
    def _due(self) -> int:
        """At least one, wherever there is any."""
        selected = self._own.indices.size + sum(ranks * part.count for part, ranks in self._parts)
        return max(1, (2 * selected + self.ranks) // (2 * self.ranks))

    def _sum(self, parts: Sequence[Sparse], ranks: Sequence[int]) -> Sparse:
        with np.errstate(all="ignore"):
            indices, numbers, _ = add_up(parts, ranks)
        return self._sparse(indices, numbers.reshape(-1), work_dtype(self.dtype).name)

    def _sparse(self, indices: Array, values: Array, dtype: str) -> Sparse:
        return Sparse.trusted(indices, held(values, dtype), self._own.shape, dtype, self._own.width)


def cut_up(selection: Selection, size: int, ranks: int, dtype: str) -> list[Block]:
    """A tensor of `size` entries as one block for each rank."""
    edges = [size * rank // ranks for rank in range(ranks + 1)]
    return [Block(selection, start, stop, dtype) for start, stop in pairwise(edges)]


def whole(selection: Selection, size: int, starts: list[int], parts: list[Sparse], dtype: str) -> Sparse:
    """Slices put together again, in the domain of the selection."""
    places = [part.indices.astype(np.int64) + start for part, start in zip(parts, starts, strict=True)]
    indices = np.concatenate(places).astype(kernels.index_dtype(size), copy=False)
    values = np.concatenate([part.values for part in parts])
    return Sparse.trusted(indices, values, selection.shape, dtype, selection.width, selection.transform)
