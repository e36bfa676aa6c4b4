"""Dense → support."""

from .chunk_topk import ChunkTopK
from .error_budget import ErrorBudget
from .nonzero import Nonzero
from .one_sign import OneSign
from .randomk import RandomK
from .threshold import Threshold
from .topk import TopK

__all__ = ["ChunkTopK", "ErrorBudget", "Nonzero", "OneSign", "RandomK", "Threshold", "TopK"]
