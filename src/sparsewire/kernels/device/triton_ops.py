"""The contract for CUDA and ROCm: Triton where a kernel of it exists, torch's operations otherwise.

No GPU has run it: it is tested by Triton's interpreter on CPU tensors, and compiled for three GPU targets.
"""

from .torch_step import gather, gather_sum, has_gradient, largest, scatter_add, total
from .triton_energy import compensate_mean, energy
from .triton_select import candidates, reaching, remembered_edge, threshold, topk, topk_sum
from .triton_step import accumulate, all_finite, compensate

NAME = "triton"

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
