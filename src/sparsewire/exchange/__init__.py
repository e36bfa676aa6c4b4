"""How ranks come to the mean."""

from ..piece import Piece
from .allgather import AllGather
from .dense import average_dense
from .mean import mean
from .reduce_scatter import ReduceScatter
from .root import Root
from .turn import Clock, Outcome, Turn

__all__ = ["AllGather", "Clock", "Outcome", "Piece", "ReduceScatter", "Root", "Turn", "average_dense", "mean"]
