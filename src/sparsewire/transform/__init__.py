"""Linear maps of the gradient before selection."""

from .identity import Identity
from .rows import Rows

__all__ = ["Identity", "Rows"]
