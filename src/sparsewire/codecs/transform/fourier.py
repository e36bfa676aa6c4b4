"""Who computes Fourier transforms: NumPy, or a framework's own library where its tensors live (`computed_by`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from sparsewire.kernels import Array
from sparsewire.kernels.scratch import scratch

HAS_OUT = int(np.__version__.partition(".")[0]) >= 2  # NumPy 1 transforms into new arrays only


class Fourier(Protocol):
    """Orthonormal Fourier transforms of the rows of a matrix; `together`: numbers that are best handed over at once.

    What they return may be written to, and holds until this thread's next transform.
    """

    @property
    def together(self) -> int: ...

    @property
    def on_device(self) -> bool:
        """Whether those of a device's gradient are computed where it lies."""

    def forward(self, rows: Array, length: int) -> Array:
        """Half spectra, complex, of real rows that zeros fill up to `length`."""

    def inverse(self, spectra: Array, length: int) -> Array:
        """The real rows of `length` that have these half spectra."""


class NumPyFourier:
    """As many numbers at once as stay in the cache, with their temporaries."""

    together = 2**17
    on_device = False

    def forward(self, rows: Array, length: int) -> Array:
        return np.fft.rfft(rows, length, norm="ortho", **_into(len(rows), length // 2 + 1, complex_of(rows.dtype)))

    def inverse(self, spectra: Array, length: int) -> Array:
        return np.fft.irfft(spectra, length, norm="ortho", **_into(len(spectra), length, spectra.real.dtype))


def _into(rows: int, length: int, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Where to: memory that is there already, as new pages cost more than the transform."""
    return {"out": scratch(rows * length, dtype, "transformed").reshape(rows, length)} if HAS_OUT else {}


def given_rows(rows: int, length: int, dtype: np.dtype[Any]) -> Array:
    """Memory for what is to be transformed; holds until this thread's next call."""
    return scratch(rows * length, dtype, "given").reshape(rows, length)


def complex_of(dtype: np.dtype[np.floating]) -> np.dtype[np.complexfloating]:
    return np.result_type(dtype, np.complex64)


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
