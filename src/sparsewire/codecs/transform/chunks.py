"""What transforms in chunks share: how a flat array falls into chunks, and lengths whose transforms are fast."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from sparsewire import kernels
from sparsewire.core.sparse import entries
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense
from sparsewire.kernels.scratch import recycled

from ..contract import Transform
from .fourier import fourier

LEAST_ROWS = 16  # NumPy works on as many rows at once as a vector has lanes
RESCUE = 2.0**20  # more than what a sum over a chunk may exceed its largest number by


@functools.lru_cache(maxsize=4096)
def fast_length(least: int) -> int:
    """The smallest number from `least` on without a prime factor above 5.

    >>> [fast_length(n) for n in (0, 1, 7, 61, 4093)]
    [0, 1, 8, 64, 4096]
    """
    while not _smooth(least):
        least += 1
    return least


def _smooth(number: int) -> bool:
    for factor in (2, 3, 5):
        while number and number % factor == 0:
            number //= factor
    return number < 2


class ChunkGroup(NamedTuple):
    """Chunks that are transformed at once: where their elements and their coefficients are, and how many there are."""

    elements: slice
    coefficients: slice
    chunks: int


class Chunked(Transform):
    """A transform of every `chunk` elements of the flat tensor, and of a shorter last chunk."""

    uses_fourier = True

    @property
    def on_device(self) -> bool:
        return fourier().on_device

    @property
    @abstractmethod
    def length(self) -> int:
        """Elements of a chunk."""

    @abstractmethod
    def numbers(self, length: int) -> int:
        """Coefficients, counted as numbers, that a chunk of `length` elements has."""

    @staticmethod
    @abstractmethod
    def analyse(x: Array, out: Array, chunks: int) -> None:
        """Writes the coefficients of whole chunks."""

    @staticmethod
    @abstractmethod
    def restore(coefficients: Array, out: Array, chunks: int) -> None:
        """Writes the chunks that have these coefficients."""

    def size(self, numel: int) -> int:
        full, rest = divmod(numel, self.length)
        return (full * self.numbers(self.length) + self.numbers(rest)) // self.width

    def forward(self, x: Array) -> Array:
        out: Array = room_beside(x, self.size(x.size) * self.width)
        for group in self._groups(x.size):
            self.coefficients_into(out[group.coefficients], x[group.elements], group.chunks)
        return out

    def inverse(self, coefficients: Array, numel: int) -> Array:
        out: Array = room_beside(coefficients, numel)
        for group in self._groups(numel):
            self.elements_into(out[group.elements], coefficients[group.coefficients], group.chunks)
        return out

    @classmethod
    def coefficients_into(cls, out: Dense, x: Dense, chunks: int) -> None:
        """Writes the coefficients of whole chunks, wherever they lie."""
        if kernels.on_host(x):
            guarded(cls.analyse, x, out, chunks)
        else:
            out.transform(cls.id, x, chunks)

    @classmethod
    def elements_into(cls, out: Dense, coefficients: Dense, chunks: int) -> None:
        """Writes the chunks that have these coefficients, wherever they lie."""
        if kernels.on_host(coefficients):
            guarded(cls.restore, coefficients, out, chunks)
        else:
            out.transform_back(cls.id, coefficients, chunks)

    def inverse_sparse(self, indices: Array, values: Array, numel: int) -> Array:
        """Coefficients are written out for a few chunks at a time."""
        out, groups, width = recycled(numel, values.dtype), list(self._groups(numel)), self.width
        firsts = np.array([group.coefficients.start // width for group in groups], indices.dtype)
        places = [*np.searchsorted(indices, firsts).tolist(), indices.size]
        for group, first, start, stop in zip(groups, firsts, places[:-1], places[1:], strict=True):
            coefficients = np.zeros(group.coefficients.stop - group.coefficients.start, values.dtype)
            entries(coefficients, width)[indices[start:stop] - first] = entries(
                values[start * width : stop * width], width
            )
            guarded(self.restore, coefficients, out[group.elements], group.chunks)
        return out

    def _groups(self, numel: int) -> Iterator[ChunkGroup]:
        at = 0
        for start, chunks, length in batches(numel, self.length):
            size = chunks * self.numbers(length)
            yield ChunkGroup(slice(start, start + chunks * length), slice(at, at + size), chunks)
            at += size


def room_beside(like: Dense, size: int) -> Dense:
    """So many numbers of any value in the work dtype, where another array lies."""
    return recycled(size, like.dtype) if kernels.on_host(like) else like.empty_beside(size)


def batches(numel: int, chunk: int) -> Iterator[tuple[int, int, int]]:
    """(start, chunks, elements of each): chunks that are transformed at once, the shorter last one alone.

    >>> list(batches(70, 32))
    [(0, 2, 32), (64, 1, 6)]
    """
    full, rest = divmod(numel, chunk)
    rows = max(LEAST_ROWS, fourier().together // chunk)
    for first in range(0, full, rows):
        yield first * chunk, min(rows, full - first), chunk
    if rest:
        yield full * chunk, 1, rest


def guarded(transform: Callable[[Array, Array, int], None], x: Array, out: Array, chunks: int) -> None:
    """A linear map of flat chunks into `out`; once more with smaller numbers where its sums alone overflow."""
    with np.errstate(all="ignore"):
        transform(x, out, chunks)
        if not kernels.all_finite(out) and kernels.all_finite(x):
            factor = x.dtype.type(RESCUE)
            transform(x / factor, out, chunks)
            out *= factor
