"""One support for all ranks (ScaleCom, PacTrain): values travel without indices, by all_reduce."""

from .exchange import SharedSupport

__all__ = ["SharedSupport"]
