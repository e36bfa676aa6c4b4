"""Reduce-scatter of sparse entries (SparDL): each rank adds up one block of the tensor."""

from .exchange import ReduceScatter

__all__ = ["ReduceScatter"]
