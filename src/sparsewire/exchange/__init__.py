"""Exchanges: how the ranks get the mean of what each of them selected."""

from sparsewire.frames.piece import Piece, Selected

from .allgather import AllGather
from .base import Clock, Exchange, ExchangeContext, Outcome
from .dense import average_dense, average_in_place
from .mean import mean
from .reduce_scatter.exchange import ReduceScatter
from .rider import Rider
from .root import Root
from .shared_support.exchange import SharedSupport
from .sketch.exchange import Sketch

__all__ = [
    "AllGather", "Clock", "Exchange", "ExchangeContext", "Outcome", "Piece", "ReduceScatter", "Rider", "Root",
    "Selected", "SharedSupport", "Sketch", "average_dense", "average_in_place", "mean",
]  # fmt: skip
