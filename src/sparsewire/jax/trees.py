"""Trees of arrays: their leaves by name, as NumPy sees them, and back with the sharding that they had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparsewire.core.host import Dense, to_host
from sparsewire.core.sparse import store
from sparsewire.errors import InputError
from sparsewire.kernels import Array
from sparsewire.training.settings import dtype_name

Tree = Any  # what jax.tree_util takes apart


def named_leaves(tree: Tree) -> dict[str, Any]:
    """The floating-point leaves by their paths, such as "layers/0/kernel". None, integers and keys are left out.

    >>> list(named_leaves({"b": None, "a": [np.ones(2, np.float32), 3]}))
    ['a/0']
    """
    paths = [(path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0] if is_trained(leaf)]
    names = [path_name(path) for path, _ in paths]
    if len(set(names)) < len(names):  # such as {1: …, "1": …}
        names = [jax.tree_util.keystr(path) for path, _ in paths]
    return {name: leaf for name, (_, leaf) in zip(names, paths, strict=True)}


def path_name(path: Any) -> str:
    """Flax's parameters hold their array as an attribute, while their gradients may be arrays: both have one name."""
    held = bool(path) and getattr(path[-1], "name", "") in ("value", "raw_value")
    return jax.tree_util.keystr(path[:-1] if held else path, simple=True, separator="/")


def is_trained(leaf: Any) -> bool:
    """Whether a leaf is a tensor of real or complex numbers, or such a number."""
    return isinstance(leaf, float | complex) or (
        hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))
    )


def replaced(tree: Tree, leaves: Sequence[Any]) -> Tree:
    """The tree with other floating-point leaves, in their order."""
    new = iter(leaves)
    return jax.tree_util.tree_map(lambda leaf: next(new) if is_trained(leaf) else leaf, tree)


def as_arrays(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers become arrays of JAX's default type."""
    return {name: leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf) for name, leaf in leaves.items()}


def is_traced(leaves: Mapping[str, Any]) -> bool:
    """Whether a transformation such as jit looks at what is done, without numbers."""
    return any(isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct) for leaf in leaves.values())


def numpy_view(name: str, leaf: Any) -> np.ndarray[Any, Any]:
    """The leaf on the host, complex numbers as pairs; read-only and without a copy where JAX allows that."""
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        raise InputError(
            f"{name!r} lies on devices of several processes, whose mean JAX makes itself: let each process compute "
            "gradients of its own batch, on a mesh of jax.local_devices()"
        )
    array = np.asarray(leaf)
    return np.ascontiguousarray(array).reshape(-1).view(array.real.dtype) if array.dtype.kind == "c" else array


def like(stored: Array, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Stored numbers as an array of this dtype and shape, in their own memory."""
    return stored.view(np.dtype(dtype)).reshape(shape)


def on_devices(array: np.ndarray[Any, Any], leaf: Any) -> jax.Array:
    """An array where the leaf is; on the CPU in the same memory, which nobody may write to any more."""
    return jax.device_put(array, leaf.sharding if isinstance(leaf, jax.Array) else None)


def flat_weights(tree: Tree) -> tuple[dict[str, Array], dict[str, str]]:
    """The leaves flat in the work dtype, and the names of their own dtypes."""
    hosts = {name: to_host(numpy_view(name, leaf)) for name, leaf in as_arrays(named_leaves(tree)).items()}
    flats = {name: host.flat for name, host in hosts.items() if isinstance(host, Dense)}
    return flats, {name: host.dtype for name, host in hosts.items()}


def weights_like(tree: Tree, weights: Mapping[str, Array]) -> Tree:
    """The tree with these weights, flat in the work dtype, in the place of its own."""
    leaves = as_arrays(named_leaves(tree))
    return replaced(tree, [
        on_devices(_as_leaf(weights[name], leaf), leaf) if name in weights else leaf for name, leaf in leaves.items()
    ])  # fmt: skip


def _as_leaf(flat: Array, leaf: Any) -> np.ndarray[Any, Any]:
    """A copy: the rounds go on with the weights."""
    dtype = np.dtype(leaf.dtype)
    real = np.zeros((), dtype).real.dtype if dtype.kind == "c" else dtype
    return like(store(flat.copy(), dtype_name(np.empty(0, real))), dtype, tuple(leaf.shape))
