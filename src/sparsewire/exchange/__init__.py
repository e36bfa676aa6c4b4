"""How ranks come to the mean."""

from ..piece import Piece
from .allgather import AllGather
from .dense import average_dense
from .mean import mean
from .turn import Clock, Outcome, Turn

__all__ = ["AllGather", "Clock", "Outcome", "Piece", "Turn", "average_dense", "mean"]
