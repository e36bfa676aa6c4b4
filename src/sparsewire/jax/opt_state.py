"""What a meeting changes of an optimizer's state in optax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from sparsewire.core.sparse import Sparse, elements

from .trees import is_trained, on_devices, path_name

MOMENTA = ("trace", "mu")  # of sgd and rmsprop; of adam and its relatives


def masked(state: Any, sent: Mapping[str, Sparse]) -> Any:
    """The state with a momentum of zero wherever this rank has sent something."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _masked(leaf, sent.get(_parameter(path))), state)


def _parameter(path: Any) -> str:
    """The name of the parameter whose momentum lies at this path; nothing for what is none."""
    at = next((place for place, key in enumerate(path) if getattr(key, "name", "") in MOMENTA), None)
    return "" if at is None else path_name(path[at + 1 :])


def _masked(leaf: Any, sent: Sparse | None) -> Any:
    if sent is None or not is_trained(leaf):
        return leaf
    array = np.array(leaf)
    numbers = array.reshape(-1)
    numbers.view(numbers.real.dtype)[elements(sent.indices, sent.width)] = 0
    return on_devices(array, leaf)


def finite_only(state: Any) -> Any:
    """The state with zeros for every array that has become non-finite."""
    return jax.tree_util.tree_map(_finite, state)


def _finite(leaf: Any) -> Any:
    if not is_trained(leaf) or bool(jax.numpy.isfinite(leaf).all()):
        return leaf
    return jax.numpy.zeros_like(leaf)
