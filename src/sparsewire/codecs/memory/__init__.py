"""What a rank does with what it did not send."""

from .dgc import DGC
from .gain import Gain
from .gmc import GMC
from .none import NoMemory
from .residual import Residual

__all__ = ["DGC", "GMC", "Gain", "NoMemory", "Residual"]
