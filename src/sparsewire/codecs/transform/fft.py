"""`fft`: the real Fourier transform of every chunk, as SuperNeurons sparsifies (arXiv 1811.08596)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsewire import kernels
from sparsewire.kernels import Array
from sparsewire.kernels.scratch import recycled, scratch

from .chunks import Chunked, fast_length, guarded
from .fourier import complex_of, fourier, given_rows

CACHED = 2**25  # bytes that may still be in a cache when they are read again


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
        _analyse(x, out, scratch(out.size // 2, out.dtype, "norms"), chunks)

    def forward(self, x: Array) -> Array:
        return self.forward_norms(x)[0] if kernels.on_host(x) else super().forward(x)

    def forward_norms(self, x: Array) -> tuple[Array, Array]:
        """Norms are computed of some chunks at a time, while their spectra are in the cache."""
        if not kernels.on_host(x):
            return super().forward_norms(x)
        out, norms = (recycled(self.size(x.size) * numbers, x.dtype) for numbers in (2, 1))
        for group in self._groups(x.size):
            given, at = x[group.elements], group.coefficients
            spectra, sizes = out[at], norms[at.start // 2 : at.stop // 2]
            if not _analyse(given, spectra, sizes, group.chunks, apart=out.nbytes > CACHED):
                guarded(self.analyse, given, spectra, group.chunks)
                kernels.row_norms(sizes, spectra, 2)
        return out, norms

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


def _analyse(x: Array, out: Array, norms: Array, chunks: int, apart: bool = False) -> bool:
    """Entries and norms of whole chunks; whether all are finite."""
    with np.errstate(all="ignore"):
        spectra = fourier().forward(x.reshape(chunks, -1), out.size // chunks)
    parts = np.ascontiguousarray(spectra, complex_of(x.dtype)).view(x.dtype)  # NumPy 1 computes in float64
    return kernels.half_spectra(out, norms, parts.reshape(-1), chunks, apart)
