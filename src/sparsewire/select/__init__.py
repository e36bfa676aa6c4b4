"""Dense → support."""

from .nonzero import Nonzero
from .one_sign import OneSign
from .randomk import RandomK
from .threshold import Threshold
from .topk import TopK

__all__ = ["Nonzero", "OneSign", "RandomK", "Threshold", "TopK"]
