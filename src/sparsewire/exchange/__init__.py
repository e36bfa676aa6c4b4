"""How ranks come to the mean."""

from .allgather import AllGather

__all__ = ["AllGather"]
