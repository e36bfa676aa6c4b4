"""States in tensors and plain types, which load under `weights_only=True`, and in arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor that this rank holds; any other tensor as it is."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def to_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays become tensors, in dicts of any depth."""
    return {key: _to_tensor(value) for key, value in state.items()}


def _to_tensor(value: Any) -> Any:
    if isinstance(value, Mapping):
        return to_tensors(value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def to_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse."""
    return {key: _to_array(value) for key, value in state.items()}


def _to_array(value: Any) -> Any:
    if isinstance(value, Mapping):
        return to_arrays(value)
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
