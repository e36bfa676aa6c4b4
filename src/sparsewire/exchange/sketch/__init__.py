"""Count sketches that an all_reduce adds up (S2 Reducer)."""

from .exchange import Sketch

__all__ = ["Sketch"]
