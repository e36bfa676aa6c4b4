"""`fft`: the real Fourier transform of every chunk, as SuperNeurons sparsifies (arXiv 1811.08596)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..kernels import Array
from .chunks import Chunked, fast_length
from .fourier import complex_of, fourier, given_rows


@dataclass(frozen=True)
class FFT(Chunked):
    """Complex coefficients of every `chunk` elements; a chunk is filled up with zeros to an even length that is fast.

    An entry is a complex coefficient of the orthonormal transform times √2, for in half a spectrum it stands for two:
    so its norm is what it has of the gradient's energy. The two real ones, of frequency 0 and of the highest, are one
    entry together, the first of its chunk: n numbers have n/2 entries of two.
    """

    id = "fft"
    wire_id = 3

    chunk: int = 4096

    def check(self) -> None:
        self.expect(2 <= self.chunk <= 2**16, "chunk lies in 2 … 65536")

    @property
    def width(self) -> int:
        return 2

    @property
    def length(self) -> int:
        return self.chunk

    def numbers(self, length: int) -> int:
        return 2 * fast_length((length + 1) // 2)

    @staticmethod
    def analyse(x: Array, out: Array, chunks: int) -> None:
        found = out.reshape(chunks, -1)
        spectra = fourier().forward(x.reshape(chunks, -1), found.shape[1])
        parts = spectra.view(spectra.real.dtype)
        np.multiply(parts[:, :-2], x.dtype.type(2**0.5), out=found, casting="same_kind")
        found[:, 0], found[:, 1] = parts[:, 0], parts[:, -2]

    @staticmethod
    def restore(coefficients: Array, out: Array, chunks: int) -> None:
        given = coefficients.reshape(chunks, -1)
        spectra = given_rows(chunks, given.shape[1] // 2 + 1, complex_of(given.dtype))
        parts = spectra.view(given.dtype)
        np.multiply(given, given.dtype.type(0.5**0.5), out=parts[:, :-2])
        parts[:, 0], parts[:, -2] = given[:, 0], given[:, 1]
        parts[:, 1] = parts[:, -1] = 0
        filled = fourier().inverse(spectra, given.shape[1])
        out.reshape(chunks, -1)[:] = filled[:, : out.size // chunks]
