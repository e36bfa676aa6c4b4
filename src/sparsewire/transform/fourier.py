"""Who computes Fourier transforms: NumPy, or a framework's own library where its tensors live (`computed_by`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import numpy as np

from ..kernels import Array


class Fourier(Protocol):
    """Orthonormal Fourier transforms of the rows of a matrix; `together`: numbers that are best handed over at once."""

    @property
    def together(self) -> int: ...

    def forward(self, rows: Array, length: int) -> Array:
        """Half spectra, complex, of real rows that zeros fill up to `length`."""

    def inverse(self, spectra: Array, length: int) -> Array:
        """The real rows of `length` that have these half spectra."""


class NumPyFourier:
    """As many numbers at once as stay in the cache, with their temporaries."""

    together = 2**17

    def forward(self, rows: Array, length: int) -> Array:
        return np.fft.rfft(rows, length, norm="ortho")

    def inverse(self, spectra: Array, length: int) -> Array:
        return np.fft.irfft(spectra, length, norm="ortho")


_engine: ContextVar[Fourier] = ContextVar("sparsewire_fourier", default=NumPyFourier())  # noqa: B039 (it has no state)


def fourier() -> Fourier:
    """Who computes them here."""
    return _engine.get()


@contextmanager
def computed_by(engine: Fourier | None) -> Iterator[None]:
    """Within this, on this thread, `engine` computes them; None: whoever does already."""
    token = _engine.set(engine or fourier())
    try:
        yield
    finally:
        _engine.reset(token)
