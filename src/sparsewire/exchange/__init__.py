"""How ranks come to the mean."""

from .allgather import AllGather
from .mean import mean
from .piece import Clock, Outcome, Piece

__all__ = ["AllGather", "Clock", "Outcome", "Piece", "mean"]
