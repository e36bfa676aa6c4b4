"""How ranks come to the mean."""

from ..piece import Piece
from .allgather import AllGather
from .dense import average_dense
from .mean import mean
from .root import Root
from .shared import Shared
from .turn import Clock, Outcome, Turn

__all__ = ["AllGather", "Clock", "Outcome", "Piece", "Root", "Shared", "Turn", "average_dense", "mean"]
