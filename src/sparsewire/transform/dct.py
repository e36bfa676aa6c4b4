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

from ..contract import Transform
from ..kernels import Array
from .chunks import TOGETHER, Chunked, complex_of, guarded


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
        rows, found = x.reshape(chunks, -1), out.reshape(chunks, -1)
        length = rows.shape[1]
        mixed = np.concatenate([rows[:, ::2], rows[:, 1::2][:, ::-1]], axis=1)
        turned = np.fft.rfft(mixed, norm="ortho") * _turns(length, x.dtype.str)
        found[:, : length // 2 + 1] = turned.real
        np.negative(turned.imag[:, 1 : (length + 1) // 2], out=found[:, : length // 2 : -1], casting="same_kind")

    @staticmethod
    def restore(coefficients: Array, out: Array, chunks: int) -> None:
        rows, found = coefficients.reshape(chunks, -1), out.reshape(chunks, -1)
        length = rows.shape[1]
        spectra = np.zeros((chunks, length // 2 + 1), complex_of(rows.dtype))
        spectra.real = rows[:, : length // 2 + 1]
        np.negative(rows[:, : (length - 1) // 2 : -1], out=spectra.imag[:, 1:])
        mixed = np.fft.irfft(spectra / _turns(length, rows.dtype.str), length, norm="ortho")
        half = (length + 1) // 2
        found[:, ::2], found[:, 1::2] = mixed[:, :half], mixed[:, half:][:, ::-1]


@dataclass(frozen=True)
class Tiles(Transform):
    """What `dct(two_dimensional=true)` is for a matrix: whole tiles first, then those that the edges cut.

    A tile is one stretch of coefficients, column after column, so that `chunk_topk` selects tile by tile.
    """

    id = "dct"

    block: int
    rows: int
    columns: int

    def size(self, numel: int) -> int:
        return numel

    def forward(self, x: Array) -> Array:
        matrix, out = x.reshape(self.rows, self.columns), np.empty_like(x)
        for part, tiles, shape in self._parts():
            flat, turned = matrix[part].reshape(shape[0], -1, shape[1]), out[tiles]
            across = np.empty_like(turned)
            guarded(DCT.analyse, np.ascontiguousarray(flat.swapaxes(0, 1)).reshape(-1), across, across.size // shape[1])
            guarded(DCT.analyse, _turned(across, shape), turned, across.size // shape[0])
        return out

    def inverse(self, coefficients: Array, numel: int) -> Array:
        out = np.empty_like(coefficients)
        matrix = out.reshape(self.rows, self.columns)
        for part, tiles, shape in self._parts():
            turned = coefficients[tiles]
            down, flat = np.empty_like(turned), np.empty_like(turned)
            guarded(DCT.restore, turned, down, down.size // shape[0])
            guarded(DCT.restore, _turned(down, shape[::-1]), flat, flat.size // shape[1])
            matrix[part] = flat.reshape(-1, *shape).swapaxes(0, 1).reshape(shape[0], -1)
        return out

    def _parts(self) -> Iterator[tuple[tuple[slice, slice], slice, tuple[int, int]]]:
        """(their place in the matrix, their coefficients, a tile's shape) of tiles that are transformed at once."""
        at = 0
        for rows, columns, width in sorted(self._strips(), key=self._is_cut):
            height = rows.stop - rows.start
            step = width * max(1, TOGETHER // (height * width))
            for start in range(columns.start, columns.stop, step):
                some = slice(start, min(columns.stop, start + step))
                size = height * (some.stop - start)
                yield (rows, some), slice(at, at + size), (height, width)
                at += size

    def _strips(self) -> Iterator[tuple[slice, slice, int]]:
        """(rows, columns, columns of a tile) of each row of tiles, the one that the last column cuts apart."""
        whole = self.columns - self.columns % self.block
        for top in range(0, self.rows, self.block):
            rows = slice(top, min(self.rows, top + self.block))
            if whole:
                yield rows, slice(0, whole), self.block
            if whole < self.columns:
                yield rows, slice(whole, self.columns), self.columns - whole

    def _is_cut(self, strip: tuple[slice, slice, int]) -> bool:
        return (strip[0].stop - strip[0].start) * strip[2] < self.block**2


def _turned(tiles: Array, shape: tuple[int, int]) -> Array:
    """Every tile transposed."""
    return np.ascontiguousarray(tiles.reshape(-1, *shape).swapaxes(1, 2)).reshape(-1)


@functools.lru_cache(maxsize=256)
def _turns(length: int, dtype: str) -> Array:
    """√2 · exp(−iπk/2n) for the frequencies k of a Fourier transform; 1 for k = 0."""
    turns = 2**0.5 * np.exp(-0.5j * np.pi * np.arange(length // 2 + 1) / length)
    turns[0] = 1
    return turns.astype(complex_of(np.dtype(dtype)))
