"""Gradient accumulation around an exchange: what it wraps is called once in k micro-steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .trees import Tree, is_trained


class EveryState(NamedTuple):
    """Micro-steps since the last exchange, the mean of their gradients, and the state of what is wrapped."""

    micro_step: jax.Array
    mean: Tree
    inner: Any


def gated(inner: optax.GradientTransformation, every: int) -> optax.GradientTransformationExtraArgs:
    """`inner` gets the mean of `every` gradients, at the last of so many calls; the others return zeros."""
    inner = optax.with_extra_args_support(inner)

    def init(params: Tree) -> EveryState:
        return EveryState(jnp.zeros((), jnp.int32), jax.tree.map(_accumulator, params), inner.init(params))

    def update(updates: Tree, state: EveryState, params: Tree = None, **extra: Any) -> tuple[Tree, EveryState]:
        place = state.micro_step
        mean = jax.tree.map(
            lambda kept, new: kept + (new.astype(kept.dtype) - kept) / (place + 1) if is_trained(new) else new,
            state.mean, updates,
        )  # fmt: skip

        def step(mean: Tree, kept: Any) -> tuple[Tree, Any, Tree]:
            moved, kept = inner.update(_as(mean, updates), kept, params, **extra)
            return _as(moved, updates), kept, jax.tree.map(jnp.zeros_like, mean)

        def wait(mean: Tree, kept: Any) -> tuple[Tree, Any, Tree]:
            return jax.tree.map(jnp.zeros_like, updates), kept, mean

        leaves = jax.tree.leaves((updates, state))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            moved, kept, mean = jax.lax.cond(place == every - 1, step, wait, mean, state.inner)
        else:
            moved, kept, mean = (step if int(place) == every - 1 else wait)(mean, state.inner)
        return moved, EveryState((place + 1) % every, mean, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def _accumulator(leaf: Any) -> Any:
    """Zeros in float32 at least."""
    if not is_trained(leaf):
        return leaf
    dtype = jnp.asarray(leaf).dtype
    return jnp.zeros(jnp.shape(leaf), jnp.promote_types(dtype, jnp.float32))


def _as(tree: Tree, other: Tree) -> Tree:
    return jax.tree.map(lambda leaf, due: leaf.astype(due.dtype) if is_trained(due) else leaf, tree, other)
