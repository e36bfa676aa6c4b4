"""Keras models, data and trainings, and the reference: one process that averages all shards' gradients itself."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import sparsewire.keras
from sparsewire.errors import CommError

BACKEND = keras.backend.backend()
TOLERANCE = 2e-7 if BACKEND == "jax" else 0.0  # XLA fuses the reference otherwise
EPOCHS, BATCH = 2, 8


@dataclass
class Place:
    """Where a scene is played."""

    folder: Path
    rank: int
    size: int

    def leave(self) -> None:
        """Ends the process when all ranks have come this far: the first to go would take the others with it."""
        with suppress(CommError):  # the last scene may have ended them
            sparsewire.keras.ranks.find_ranks(BACKEND, 60.0).barrier()


# --- models and data ---


def model_of(kind: str, seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    body = {
        "mlp": [keras.Input((20,)), layers.Dense(64, "relu"), layers.Dense(32, "relu")],
        "embedding": [keras.Input((5,), dtype="int32"), layers.Embedding(300, 8), layers.Flatten()],
        "conv": [keras.Input((8, 8, 1)), layers.Conv2D(8, 3, activation="relu"), layers.Flatten()],
    }[kind]
    return keras.Sequential([*body, layers.Dense(4)])


def data_of(kind: str, count: int, seed: int = 1) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    classes = np.arange(count, dtype="int32") % 4
    if kind == "embedding":
        return (random.integers(0, 75, (count, 5)) * 4 + classes[:, None]).astype("int32"), classes
    centres = np.random.default_rng(7).normal(size=(4, 20 if kind == "mlp" else 64))
    x = (centres[classes] + 0.5 * random.normal(size=(count, centres.shape[1]))).astype("float32")
    return (x if kind == "mlp" else x.reshape(count, 8, 8, 1)), classes


def optimizer_of(name: str) -> Any:
    makers: dict[str, Any] = {
        "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        "nesterov": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        "plain": lambda: keras.optimizers.SGD(0.1),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01),
    }
    return makers[name]()


def loss_of() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(kind: str, optimizer: str, seed: int, **settings: Any) -> Any:
    model = model_of(kind, seed)
    model.compile(optimizer_of(optimizer), loss_of(), metrics=["accuracy"], **settings)
    return model


def mine(place: Place, data: tuple[Any, Any]) -> tuple[Any, Any]:
    """This rank's share."""
    return data[0][place.rank :: place.size], data[1][place.rank :: place.size]


def fit(model: Any, data: tuple[Any, Any], link: Any = None, epochs: int = EPOCHS, **settings: Any) -> Any:
    callbacks = [] if link is None else [link, *settings.pop("callbacks", [])]
    given = {"batch_size": BATCH, "shuffle": False, "verbose": 0, **settings}
    return model.fit(*data, epochs=epochs, callbacks=callbacks, **given).history


def weights(model: Any) -> list[Any]:
    return [np.asarray(one) for one in model.get_weights()]


def digest(model: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in weights(model))).hexdigest()


def same_on_all(link: Any, text: str) -> None:
    """Whether all ranks say the same."""
    assert {bytes(part) for part in link.comm.all_gather(text.encode())} == {text.encode()}


def farthest(one: list[Any], other: list[Any]) -> float:
    return max(float(np.abs(a.astype(float) - b).max()) for a, b in zip(one, other, strict=True))


# --- the reference: one process that averages the gradients of all shards itself ---


def reference(kind: str, optimizer: str, size: int, data: tuple[Any, Any]) -> list[Any]:
    model, behind = model_of(kind, 0), optimizer_of(optimizer)
    behind.build(model.trainable_variables)
    take = own_step(model, behind, loss_of())
    shards = [(data[0][rank::size], data[1][rank::size]) for rank in range(size)]
    for _ in range(EPOCHS):
        for start in range(0, len(shards[0][0]), BATCH):
            take([(x[start : start + BATCH], y[start : start + BATCH]) for x, y in shards])
    return weights(model)


def own_step(model: Any, optimizer: Any, loss: Any) -> Any:
    """A step of this backend, written by hand: from shards' data to new weights."""
    return {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}[BACKEND](model, optimizer, loss)


def _mean(all_grads: Any) -> list[Any]:
    return [sum(grads[1:], start=grads[0]) / len(grads) for grads in zip(*all_grads, strict=True)]


def _tensorflow(model: Any, optimizer: Any, loss: Any) -> Any:
    import tensorflow as tf

    @tf.function(reduce_retracing=True)
    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        return [tf.convert_to_tensor(one) for one in tape.gradient(value, model.trainable_variables)]

    @tf.function
    def apply(grads: Any) -> None:
        optimizer.apply(grads, model.trainable_variables)

    return lambda shards: apply(_mean([gradients(*map(tf.convert_to_tensor, shard)) for shard in shards]))


def _torch(model: Any, optimizer: Any, loss: Any) -> Any:
    import torch

    def gradients(x: Any, y: Any) -> Any:
        model.zero_grad()
        loss(torch.from_numpy(y), model(torch.from_numpy(x), training=True)).backward()
        return [one.value.grad.clone() for one in model.trainable_variables]

    def take(shards: Any) -> None:
        means = _mean([gradients(*shard) for shard in shards])
        with torch.no_grad():
            optimizer.apply(means, model.trainable_variables)

    return take


def _jax(model: Any, optimizer: Any, loss: Any) -> Any:
    import jax

    state = [[one.value for one in model.trainable_variables], [one.value for one in optimizer.variables]]
    rest = [one.value for one in model.non_trainable_variables]

    def value(trained: Any, x: Any, y: Any) -> Any:
        return loss(y, model.stateless_call(trained, rest, x, training=True)[0])

    gradients, apply = jax.jit(jax.grad(value)), jax.jit(optimizer.stateless_apply)

    def take(shards: Any) -> None:
        state[:] = apply(state[1], _mean([gradients(state[0], *shard) for shard in shards]), state[0])
        for one, new in zip(model.trainable_variables, state[0], strict=True):
            one.assign(new)

    return take
