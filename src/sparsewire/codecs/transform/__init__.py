"""Linear maps of the gradient before selection."""

from .dct import DCT
from .fft import FFT
from .fourier import Fourier, computed_by
from .identity import Identity
from .rows import Rows

__all__ = ["DCT", "FFT", "Fourier", "Identity", "Rows", "computed_by"]
