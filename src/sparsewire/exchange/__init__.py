"""How ranks come to the mean."""

from ..piece import Piece
from .allgather import AllGather
from .dense import average_dense
from .mean import mean
from .reduce_scatter import ReduceScatter
from .root import Root
from .shared import Shared
from .sketch import Sketch
from .turn import Clock, Outcome, Turn

__all__ = [
    "AllGather", "Clock", "Outcome", "Piece", "ReduceScatter", "Root", "Shared", "Sketch", "Turn", "average_dense",
    "mean",
]  # fmt: skip
