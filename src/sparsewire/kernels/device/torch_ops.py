"""The contract in torch's operations, for every device that torch has; tested on CPU tensors.

Every product and sum is an operation of its own, so that none is fused with another. Work goes block by block, so that
a gradient is never converted whole and temporary tensors stay small.
"""

from .torch_energy import compensate_mean, energy
from .torch_select import candidates, reaching, remembered_edge, threshold, topk, topk_sum
from .torch_step import (
    accumulate,
    all_finite,
    compensate,
    gather,
    gather_sum,
    has_gradient,
    largest,
    scatter_add,
    total,
)

NAME = "torch"

__all__ = [
    "NAME",
    "accumulate",
    "all_finite",
    "candidates",
    "compensate",
    "compensate_mean",
    "energy",
    "gather",
    "gather_sum",
    "has_gradient",
    "largest",
    "reaching",
    "remembered_edge",
    "scatter_add",
    "threshold",
    "topk",
    "topk_sum",
    "total",
]
