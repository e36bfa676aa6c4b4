"""Scenes of a Keras training that several ranks play together, on any backend."""

from __future__ import annotations

import os
import signal
import zipfile
from typing import Any

import keras
import numpy as np
import pytest
from keras_trainings import (
    BATCH,
    EPOCHS,
    TOLERANCE,
    Place,
    compiled,
    data_of,
    digest,
    farthest,
    fit,
    loss_of,
    mine,
    model_of,
    optimizer_of,
    own_step,
    reference,
    same_on_all,
    weights,
)

import sparsewire.keras
from sparsewire.errors import CommError, SparsewireError

LOSSLESS = "nonzero | values=raw | memory=none"


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
        step = own_step(model, optimizer, loss_of())
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
