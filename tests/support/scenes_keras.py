"""Scenes of a Keras training that several ranks play together, on any backend."""

from __future__ import annotations

import hashlib
import os
import signal
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import sparsewire.keras
from sparsewire.errors import CommError, SparsewireError

BACKEND = keras.backend.backend()
LOSSLESS = "nonzero | values=raw | memory=none"
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
    loss, step = loss_of(), {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}[BACKEND]
    take = step(model, behind, loss)
    shards = [(data[0][rank::size], data[1][rank::size]) for rank in range(size)]
    for _ in range(EPOCHS):
        for start in range(0, len(shards[0][0]), BATCH):
            take([(x[start : start + BATCH], y[start : start + BATCH]) for x, y in shards])
    return weights(model)


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


# --- scenes ---


def _lossless(place: Place, kind: str, optimizer: str, within: float = TOLERANCE) -> None:
    data = data_of(kind, 48 * place.size)
    model = compiled(kind, optimizer, seed=place.rank)  # the ranks get rank 0's weights
    with sparsewire.keras.attach(model, LOSSLESS, dense_below=0) as link:
        fit(model, mine(place, data), link)
        assert link.stats()["steps"] == EPOCHS * 48 // BATCH
        same_on_all(link, digest(model))
    far = farthest(weights(model), reference(kind, optimizer, place.size, data))
    print(f"{kind} {optimizer}: {far}")
    assert far <= within, far


def lossless_mlp_sgd(place: Place) -> None:
    _lossless(place, "mlp", "sgd")


def lossless_mlp_adam(place: Place) -> None:
    _lossless(place, "mlp", "adam", max(TOLERANCE, TOLERANCE and 2e-6))


def lossless_embedding_sgd(place: Place) -> None:
    _lossless(place, "embedding", "sgd")


def lossless_embedding_adam(place: Place) -> None:
    _lossless(place, "embedding", "adam")


def lossless_conv_sgd(place: Place) -> None:
    _lossless(place, "conv", "nesterov")


def lossless_of_three(place: Place) -> None:
    """Sums of three numbers round in the order of the ranks."""
    _lossless(place, "mlp", "sgd", 2e-7)


def _trains(place: Place, optimizer: str, scheme: str | None = None) -> Any:
    data, test = data_of("mlp", 320 * place.size), data_of("mlp", 200, seed=2)
    model = compiled("mlp", optimizer, seed=place.rank)
    with sparsewire.keras.attach(model, scheme, total_steps=160, dense_below=512) as link:
        history = fit(model, mine(place, data), link, epochs=4, validation_data=test)
        same_on_all(link, digest(model) + str(history))
        stats = link.stats()
        assert stats["steps"] == 160
        assert stats["bytes_sent"] < stats["bytes_dense"] / 2
    assert history["val_accuracy"][-1] > 0.95, history
    return link


def the_recipe_trains(place: Place) -> None:
    link = _trains(place, "sgd")
    assert "gain(momentum=0.9)" in repr(link)
    link = _trains(place, "adamw")
    assert "memory=residual" in repr(link)
    assert 'select_per="model"' in repr(link)


def deepreduce_trains(place: Place) -> None:
    _trains(place, "plain", "deepreduce(ratio=0.05)")


def it_goes_on_exactly(place: Place) -> None:
    """What is saved after two epochs and loaded into another model trains to the same bits."""
    data, folder = mine(place, data_of("mlp", 96 * place.size)), place.folder / "state"
    for optimizer in ("sgd", "adam"):
        model, file = compiled("mlp", optimizer, seed=0), place.folder / f"{optimizer}.keras"
        with sparsewire.keras.attach(model, "topk(10%)", dense_below=0) as link:
            fit(model, data, link, epochs=1)
            link.save(folder)
            if place.rank == 0:
                model.save(file)
            fit(model, data, link, epochs=1)
        with zipfile.ZipFile(file) if place.rank == 0 else open(__file__, "rb") as saved:
            assert place.rank or b"sparsewire" not in saved.read("config.json")
        loaded = keras.models.load_model(file) if place.rank == 0 else compiled("mlp", optimizer, seed=7)
        with sparsewire.keras.attach(loaded, "topk(10%)", dense_below=0) as link:
            link.load(folder)
            fit(loaded, data, link, epochs=1)
            assert link.step == 2 * 96 // BATCH
        assert digest(loaded) == digest(model)


def ranks_end_together(place: Place) -> None:
    """The rank with the fewest batches ends the epoch, and a rank that stops ends the training for all."""
    x, y = data_of("mlp", 40 + 16 * place.rank, seed=place.rank)
    model = compiled("mlp", "plain", seed=place.rank)
    link = sparsewire.keras.attach(model, "topk(10%)")
    history = fit(model, (x, y), link, epochs=2)
    assert link.step == 10
    same_on_all(link, digest(model) + str(history))

    stopper = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stop_at(model, epoch, place))
    history = fit(model, (x[:40], y[:40]), link, epochs=6, callbacks=[stopper])
    assert len(history["loss"]) in (3, 4)
    assert link.step == 25

    early = keras.callbacks.EarlyStopping("loss", min_delta=100.0, patience=1)
    history = fit(model, (x[:40], y[:40]), link, epochs=6, callbacks=[early])
    assert len(history["loss"]) == 2
    same_on_all(link, digest(model) + str(history))
    link.detach()
    assert "apply" not in vars(model.optimizer)
    fit(model, (x, y))


def stop_at(model: Any, epoch: int, place: Place) -> None:
    """One rank has had enough after three epochs."""
    if place.rank == place.size - 1 and epoch == 2:
        model.stop_training = True


def data_of_unknown_length_ends_together(place: Place) -> None:
    """Generators tell no number of batches; one rank's is short."""
    x, y = data_of("mlp", 48, seed=place.rank)
    model = compiled("mlp", "plain", seed=place.rank)

    def batches() -> Any:
        for start in range(0, 48 - 16 * place.rank, BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]

    with sparsewire.keras.attach(model, "topk(10%)") as link:
        model.fit(batches(), epochs=1, verbose=0, callbacks=[link])
        assert link.step == 6 - 2 * (place.size - 1)
        same_on_all(link, digest(model))


def the_loss_scale_is_followed(place: Place) -> None:
    """Gradients that overflow on one rank are left out on all, and the scale falls for all."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        x, y = data_of("mlp", 64, seed=place.rank)
        if place.rank == 0:
            x[16:24] = 6e4
        model = compiled("mlp", "sgd", seed=place.rank)
        with sparsewire.keras.attach(model, "topk(10%)", dense_below=0) as link:
            fit(model, (x, y), link)
            scale = float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
            assert scale < model.optimizer.initial_scale
            assert link.averager.scale >= scale
            assert all(np.isfinite(one).all() for one in weights(model))
            same_on_all(link, f"{digest(model)} {scale}")
    finally:
        keras.mixed_precision.set_global_policy("float32")


def adam_keeps_no_first_moment(place: Place) -> None:
    """Behind what waits, Adam is Adam with beta_1=0.0: but not in dense steps, nor for what travels dense."""
    data = mine(place, data_of("mlp", 64 * place.size))

    def trained(beta_1: float, **settings: Any) -> Any:
        model = model_of("mlp", 0)
        model.compile(keras.optimizers.Adam(0.01, beta_1=beta_1), loss_of())
        with sparsewire.keras.attach(model, "topk(10%) | memory=residual", **settings) as link:
            fit(model, data, link, epochs=1)
        assert model.optimizer.beta_1 == beta_1
        return digest(model)

    assert trained(0.9, dense_below=0) == trained(0.0, dense_below=0)
    assert trained(0.9) != trained(0.0)
    assert trained(0.9, dense_below=0, warmup_steps=4) != trained(0.0, dense_below=0, warmup_steps=4)


def a_loop_of_ones_own_exchanges(place: Place) -> None:
    """`attach(model, optimizer=…)` for a loop or a `train_step` without `compile`."""
    x, y = mine(place, data_of("mlp", 48 * place.size))
    model, optimizer = model_of("mlp", place.rank), optimizer_of("sgd")
    with sparsewire.keras.attach(model, LOSSLESS, optimizer=optimizer, dense_below=0) as link:
        step = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}[BACKEND](model, optimizer, loss_of())
        for _ in range(EPOCHS):
            for start in range(0, 48, BATCH):
                step([(x[start : start + BATCH], y[start : start + BATCH])])
        link.settled()
        assert link.step == EPOCHS * 48 // BATCH
        same_on_all(link, digest(model))
    expected = reference("mlp", "sgd", place.size, data_of("mlp", 48 * place.size))
    assert farthest(weights(model), expected) <= TOLERANCE


def errors_keep_their_class(place: Place) -> None:
    """The last scene: whoever fails raises its own error, whatever the backend makes of it; the others hear of it."""

    def fail(facts: Any) -> None:
        if place.rank == place.size - 1 and facts["steps"] == 3:
            raise KeyError("out of luck")

    model = compiled("mlp", "plain", seed=place.rank)
    link = sparsewire.keras.attach(model, "topk(10%)", on_step=fail, timeout=5.0)
    with pytest.raises(KeyError if place.rank == place.size - 1 else CommError) as told:
        fit(model, data_of("mlp", 48), link)
    assert link.error is told.value
    with pytest.raises(SparsewireError, match="the link has failed"):
        link.put({})


def the_other_is_killed(place: Place) -> None:
    """The last scene: rank 1 is killed in the middle of its training."""
    model = compiled("mlp", "plain", seed=place.rank)

    def die(facts: Any) -> None:
        if place.rank == 1 and facts["steps"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    link = sparsewire.keras.attach(model, "topk(10%)", on_step=die, timeout=10.0)
    with pytest.raises(CommError) as told:
        fit(model, data_of("mlp", 48), link)
    assert any("on rank 0, at step 3" in note for note in told.value.__notes__)
