"""Small models in plain JAX, batches that differ from rank to rank, and trainings, for tests of sparsewire.jax."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = dict[str, Any]
Batch = tuple[Any, Any]


def _normal(key: int, *shape: int) -> Any:
    return 0.3 * jax.random.normal(jax.random.key(key), shape)


def mlp() -> Params:
    return {"a": _normal(1, 8, 48), "b": {"bias": jnp.zeros(48), "w": _normal(2, 48, 40)}, "c": _normal(3, 40, 1)}


def embedding() -> Params:
    return {"table": _normal(4, 100, 16), "w": _normal(5, 16, 8), "c": _normal(6, 8, 1)}


def conv() -> Params:
    return {"kernel": _normal(7, 12, 1, 3, 3), "deep": _normal(8, 16, 12, 3, 3), "c": _normal(9, 16, 1)}


def mlp_output(params: Params, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["a"] + 0.0)
    return jnp.tanh(hidden @ params["b"]["w"] + params["b"]["bias"][:40]) @ params["c"]


def embedding_output(params: Params, x: Any) -> Any:
    return jnp.tanh(params["table"][x].mean(1) @ params["w"]) @ params["c"]


def conv_output(params: Params, x: Any) -> Any:
    hidden = jax.nn.relu(jax.lax.conv(x, params["kernel"], (1, 1), "SAME"))
    return jax.nn.relu(jax.lax.conv(hidden, params["deep"], (2, 2), "SAME")).mean((2, 3)) @ params["c"]


INPUTS: dict[str, Callable[[np.random.Generator], Any]] = {
    "mlp": lambda draw: draw.normal(size=(16, 8)).astype(np.float32),
    "embedding": lambda draw: draw.integers(0, 100, (16, 5)),
    "conv": lambda draw: draw.normal(size=(8, 1, 8, 8)).astype(np.float32),
}
MODELS: dict[str, tuple[Callable[[], Params], Callable[[Params, Any], Any]]] = {
    "mlp": (mlp, mlp_output),
    "embedding": (embedding, embedding_output),
    "conv": (conv, conv_output),
}


def batches(model: str, rank: int, steps: int) -> Iterator[Batch]:
    """This rank's; the target is a function of the input."""
    for step in range(steps):
        x = INPUTS[model](np.random.default_rng([step, rank]))
        flat = x.reshape(len(x), -1).astype(np.float32)
        yield x, np.tanh(flat[:, :4].sum(1, keepdims=True) / (50 if model == "embedding" else 2))


def loss_of(model: str) -> Callable[[Params, Any, Any], Any]:
    output = MODELS[model][1]
    return lambda params, x, y: jnp.mean((output(params, x) - y) ** 2)


def gradients(rank: int, steps: int) -> list[Params]:
    """Gradients of every kind of leaf, drawn for each rank and step."""
    made = []
    for step in range(steps):
        draw = np.random.default_rng([step, rank, 7])
        made.append({
            "w": jnp.asarray(draw.normal(size=(60, 50)), jnp.float32),
            "half": jnp.asarray(draw.normal(size=(40, 50)), jnp.bfloat16),
            "none": None,
            "deep": [jnp.asarray(draw.normal(), jnp.float32), (jnp.asarray(draw.normal(size=3), jnp.float32),)],
            "complex": jnp.asarray(draw.normal(size=(9, 2)) @ [1, 1j], jnp.complex64),
        })  # fmt: skip
    return made


def digest(tree: Any) -> int:
    """A number that differs where a bit does."""
    return zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)))


def distance(tree: Any, other: Any) -> float:
    """The largest difference of two trees' numbers."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(one) - np.asarray(two)).max()) for one, two in pairs)


def zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


# --- trainings ---


@functools.cache
def compiled(model: str) -> Any:
    """Loss and gradient; compiled once, as that takes longer than all else."""
    return jax.jit(jax.value_and_grad(loss_of(model)))


def trained(model: str, wire: Any, optimizer: Any, steps: int, jit: bool = False) -> tuple[Any, list[float]]:
    """The weights after so many steps, and the losses."""
    tx = wire.chain(optimizer) if hasattr(wire, "chain") else optax.chain(wire, optimizer)
    params = MODELS[model][0]()
    state, losses, computed = tx.init(params), [], compiled(model)

    def whole(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradient = computed(params, x, y)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    step = jax.jit(whole)
    for x, y in batches(model, jax.process_index(), steps):
        if jit:
            params, state, value = step(params, state, x, y)
        else:
            value, gradient = computed(params, x, y)
            updates, state = tx.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, losses


@functools.cache
def summing() -> tuple[Any, Any]:
    """A sharding over all processes, and JAX's own mean over them."""
    mesh = jax.make_mesh((jax.process_count(),), ("rank",), devices=jax.devices())
    spread, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (["rank"], []))
    mean = jax.jit(lambda tree: jax.tree.map(lambda every: every.mean(0), tree), out_shardings=everywhere)
    return spread, mean


def dense() -> Any:
    """Averages as JAX does."""
    spread, mean = summing()

    def average(updates: Any, params: Any = None) -> Any:
        own = jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(spread, np.asarray(leaf)[None]), updates)
        return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf.addressable_data(0)), mean(own))

    return optax.stateless(average)
