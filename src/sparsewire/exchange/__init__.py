"""How ranks come to the mean."""

from sparsewire.frames.piece import Piece

from .allgather import AllGather
from .dense import average_dense
from .mean import mean
from .reduce_scatter.exchange import ReduceScatter
from .root import Root
from .shared_support.exchange import Shared
from .sketch.exchange import Sketch
from .turn import Clock, Outcome, Turn

__all__ = [
    "AllGather", "Clock", "Outcome", "Piece", "ReduceScatter", "Root", "Shared", "Sketch", "Turn", "average_dense",
    "mean",
]  # fmt: skip
