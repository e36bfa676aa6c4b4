"""Dense → support."""

from .nonzero import Nonzero
from .randomk import RandomK
from .threshold import Threshold
from .topk import TopK

__all__ = ["Nonzero", "RandomK", "Threshold", "TopK"]
