"""Keras on JAX: one ordered callback out of the compiled step. Messages then go by the coordinator's store, as the
devices are taken; `JaxCommunicator.within_callback` sees to that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from . import Step

jax.config.update("jax_cpu_enable_async_dispatch", False)  # a callback may wait for ever for the thread that it needs


def exchange(link: Any, names: Sequence[str], gradients: Sequence[Any], scale: Any) -> Step:
    within = getattr(link.comm, "within_callback", nullcontext)

    def call(scale: Any, *arrays: Any) -> tuple[Any, ...]:
        given = {name: np.asarray(array) for name, array in zip(names, arrays, strict=True)}
        with within():
            means = link.exchange(given, scale)
        return (*(means[name] for name in names), np.float32(link.averager.was_sparse))

    shapes = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in gradients]
    flag = jax.ShapeDtypeStruct((), np.float32)
    *means, sparse = io_callback(call, (*shapes, flag), 1.0 if scale is None else scale, *gradients, ordered=True)
    return Step(means, sparse)


def settle() -> None:
    jax.effects_barrier()
