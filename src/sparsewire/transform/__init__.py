"""Dense → dense, before selection."""

from .identity import Identity

__all__ = ["Identity"]
