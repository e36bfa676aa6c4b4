"""Dense → support."""

from .chunk_topk import ChunkTopK
from .error_budget import ErrorBudget
from .nonzero import Nonzero
from .not_finite import NotFinite
from .one_sign import OneSign
from .randomk import RandomK
from .threshold import Threshold
from .topk import TopK

__all__ = ["ChunkTopK", "ErrorBudget", "Nonzero", "NotFinite", "OneSign", "RandomK", "Threshold", "TopK"]
