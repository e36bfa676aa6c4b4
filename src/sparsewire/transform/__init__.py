"""Linear maps of the gradient before selection."""

from .dct import DCT
from .fft import FFT
from .identity import Identity
from .rows import Rows

__all__ = ["DCT", "FFT", "Identity", "Rows"]
