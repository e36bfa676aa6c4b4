"""What a rank does with what it did not send."""

from .none import NoMemory
from .residual import Residual

__all__ = ["NoMemory", "Residual"]
