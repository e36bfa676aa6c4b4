"""`dct`: the cosine transform (type II) of every block, or of tiles of matrices as in DeMo (arXiv 2411.19870).

NumPy has no cosine transform; a Fourier transform of the same length does (Makhoul, 1980): of the even elements
followed by the odd ones in reverse, turned by a quarter of a step per frequency.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array
from sparsewire.kernels.device import Dense

from ..contract import Transform
from .chunks import Chunked, room_beside
from .fourier import complex_of, fourier, given_rows


@dataclass(frozen=True)
class DCT(Chunked):
    """One coefficient per element: of every `block` elements, or of tiles of `block` × `block` of a matrix.

    The last block is as short as it is. A tensor of more than two dimensions is a matrix of its first against all
    others; one with fewer than two, or with fewer rows than a tile, goes in blocks of the flat tensor.
    """

    id = "dct"
    wire_id = 4

    block: int = 64
    two_dimensional: bool = False

    def check(self) -> None:
        self.expect(2 <= self.block <= 1024, "block lies in 2 … 1024")

    def fitted(self, shape: tuple[int, ...]) -> Transform:
        if not self.two_dimensional:
            return self
        if len(shape) < 2 or shape[0] < self.block:
            return DCT(self.block)
        return Tiles(self.block, shape[0], math.prod(shape[1:]))

    @property
    def length(self) -> int:
        return self.block

    def numbers(self, length: int) -> int:
        return length

    @staticmethod
    def analyse(x: Array, out: Array, chunks: int) -> None:
        rows, coefficients = x.reshape(chunks, -1), out.reshape(chunks, -1)
        length = rows.shape[1]
        mixed, half = given_rows(chunks, length, x.dtype), (length + 1) // 2
        mixed[:, :half], mixed[:, half:] = rows[:, ::2], rows[:, 1::2][:, ::-1]
        turned = fourier().forward(mixed, length)
        turned *= _turns(length, x.dtype.str)
        coefficients[:, : length // 2 + 1] = turned.real
        # Not np.negative(…, out=…): NumPy 2.4 reads the wrong places of some strided float32 arrays.
        coefficients[:, : length // 2 : -1] = -turned.imag[:, 1 : (length + 1) // 2]

    @staticmethod
    def restore(coefficients: Array, out: Array, chunks: int) -> None:
        rows, elements = coefficients.reshape(chunks, -1), out.reshape(chunks, -1)
        length = rows.shape[1]
        spectra = given_rows(chunks, length // 2 + 1, complex_of(rows.dtype))
        spectra.real, spectra.imag[:, 0] = rows[:, : length // 2 + 1], 0
        spectra.imag[:, 1:] = -rows[:, : (length - 1) // 2 : -1]
        spectra /= _turns(length, rows.dtype.str)
        mixed = fourier().inverse(spectra, length)
        half = (length + 1) // 2
        elements[:, ::2], elements[:, 1::2] = mixed[:, :half], mixed[:, half:][:, ::-1]


@dataclass(frozen=True)
class Tiles(Transform):
    """What `dct(two_dimensional=true)` is for a matrix: whole tiles first, then those that the edges cut.

    A tile is one stretch of coefficients, column after column, so that `chunk_topk` selects tile by tile.
    """

    id = "dct"

    block: int
    rows: int
    columns: int

    @property
    def on_device(self) -> bool:
        return fourier().on_device

    def size(self, numel: int) -> int:
        return numel

    def forward(self, x: Array) -> Array:
        out: Array = room_beside(x, x.size)
        for part in self._parts():
            turned, across = out[part.coefficients], room_beside(x, part.size)
            DCT.coefficients_into(across, part.tiles(x, self.columns), part.size // part.width)
            DCT.coefficients_into(turned, _turned(across, part.height, part.width), part.size // part.height)
        return out

    def inverse(self, coefficients: Array, numel: int) -> Array:
        out: Array = room_beside(coefficients, coefficients.size)
        for part in self._parts():
            down, flat = (room_beside(coefficients, part.size) for _ in range(2))
            DCT.elements_into(down, coefficients[part.coefficients], part.size // part.height)
            DCT.elements_into(flat, _turned(down, part.width, part.height), part.size // part.width)
            part.put(out, self.columns, flat)
        return out

    def _parts(self) -> Iterator[TilePart]:
        """Whole tiles; those that the last column cuts; those that the last row cuts; the one that both cut."""
        at, down, right = 0, self.rows % self.block, self.columns % self.block
        for height, rows in ((self.block, slice(0, self.rows - down)), (down, slice(self.rows - down, self.rows))):
            for width, columns in (
                (self.block, slice(0, self.columns - right)),
                (right, slice(self.columns - right, self.columns)),
            ):
                for some_rows, some_columns in _cut(rows, columns, height, width):
                    part = TilePart(some_rows, some_columns, height, width, at)
                    at += part.size
                    yield part


@dataclass(frozen=True)
class TilePart:
    """Tiles of one shape that are transformed at once: their place in the matrix, and their first coefficient."""

    rows: slice
    columns: slice
    height: int
    width: int
    start: int

    @property
    def size(self) -> int:
        return (self.rows.stop - self.rows.start) * (self.columns.stop - self.columns.start)

    @property
    def coefficients(self) -> slice:
        return slice(self.start, self.start + self.size)

    def tiles(self, x: Dense, columns: int) -> Dense:
        """Tile after tile, row after row, of a flat matrix of so many columns."""
        if not kernels.on_host(x):
            return x.tiles(columns, self.rows, self.columns, self.height, self.width)
        return np.ascontiguousarray(self._grid(x.reshape(-1, columns)).swapaxes(1, 2)).reshape(-1)

    def put(self, out: Dense, columns: int, tiles: Dense) -> None:
        """The inverse of `tiles`."""
        if not kernels.on_host(out):
            out.put_tiles(columns, self.rows, self.columns, self.height, self.width, tiles)
            return
        grid = self._grid(out.reshape(-1, columns))
        grid[:] = tiles.reshape(grid.shape[0], grid.shape[2], self.height, self.width).swapaxes(1, 2)

    def _grid(self, matrix: Array) -> Array:
        """A view, as axes are only split: (row of tiles, row in it, tile, column in it)."""
        part = matrix[self.rows, self.columns]
        return part.reshape(part.shape[0] // self.height, self.height, part.shape[1] // self.width, self.width)


def _cut(rows: slice, columns: slice, height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """Tiles of this shape, in parts of as many as are transformed at once: rows of tiles, or parts of one row."""
    many = max(1, fourier().together // max(1, height * width))
    across = max(1, (columns.stop - columns.start) // max(1, width))
    down, right = height * max(1, many // across), width * min(across, many)
    for top in range(rows.start, rows.stop, max(1, down)):
        for left in range(columns.start, columns.stop, max(1, right)):
            yield slice(top, min(rows.stop, top + down)), slice(left, min(columns.stop, left + right))


def _turned(tiles: Dense, height: int, width: int) -> Dense:
    """Every tile transposed."""
    if not kernels.on_host(tiles):
        return tiles.turned(height, width)
    return np.ascontiguousarray(tiles.reshape(-1, height, width).swapaxes(1, 2)).reshape(-1)


@functools.lru_cache(maxsize=256)
def _turns(length: int, dtype: str) -> Array:
    """√2 · exp(−iπk/2n) for the frequencies k of a Fourier transform; 1 for k = 0."""
    turns = 2**0.5 * np.exp(-0.5j * np.pi * np.arange(length // 2 + 1) / length)
    turns[0] = 1
    return turns.astype(complex_of(np.dtype(dtype)))
