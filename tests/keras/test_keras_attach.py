"""What `attach` serves and refuses, what it leaves behind, and what ranks tell each other between steps."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from host_ranks import missing

from sparsewire.comm import Communicator, run_ranks
from sparsewire.errors import AccuracyWarning, InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    keras = pytest.importorskip("keras", reason="keras is not installed")

import sparsewire.keras
from sparsewire.keras.meetings import Meetings
from sparsewire.keras.optimizers import kind_of, read_facts

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Your input ran out of data")
optimizers = keras.optimizers


def model_with(optimizer: Any, **settings: Any) -> Any:
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **settings)
    return model


def train(model: Any, **settings: Any) -> Any:
    x = np.ones((16, 32), np.float32)
    return model.fit(x, x[:, :1], batch_size=8, verbose=0, **settings)


@pytest.mark.parametrize(
    ("optimizer", "recipe"),
    [
        (optimizers.SGD(0.1, momentum=0.9), "memory=gain(momentum=0.9)"),
        (optimizers.SGD(0.1, momentum=0.9, nesterov=True), "memory=gain(momentum=0.9, nesterov=true)"),
        (optimizers.SGD(0.1), "memory=residual"),
        (optimizers.Adam(), 'memory=residual", optimizer=optimizer, select_per="model"'),
        (optimizers.AdamW(), "memory=residual"),
        (optimizers.Adamax(), "memory=residual"),
        (optimizers.Nadam(beta_1=0.0), "memory=residual"),
        (optimizers.RMSprop(), "memory=residual"),
        (optimizers.Adagrad(), "memory=residual"),
        (optimizers.Adadelta(), "memory=residual"),
        (optimizers.Adafactor(), "memory=residual"),
        (optimizers.LossScaleOptimizer(optimizers.SGD(0.1, momentum=0.5)), "memory=gain(momentum=0.5)"),
    ],
    ids=lambda one: one.name if isinstance(one, optimizers.Optimizer) else "",
)
def test_the_recipe_of_an_optimizer_that_is_served(optimizer: Any, recipe: str) -> None:
    model = model_with(optimizer)
    with sparsewire.keras.attach(model) as link:
        assert recipe in repr(link)
        train(model, callbacks=[link])
        assert link.step == 2
        assert link.stats()["recipe"] == repr(link.recipe)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (optimizers.Nadam(), r"write keras.optimizers.Adam\("),
        (optimizers.RMSprop(momentum=0.9), r"write RMSprop\(…, momentum=0\)"),
        (optimizers.Lion(), r"signs of a momentum.*attach\(model, \"nonzero \| memory=none\"\)"),
        (optimizers.Lamb(), "norm of an update"),
        (optimizers.Ftrl(), "train with SGD, Adam or AdamW"),
        (optimizers.Muon(), "train with SGD, Adam or AdamW"),
        (optimizers.SGD(gradient_accumulation_steps=4), "batches of 4 times the size"),
    ],
    ids=lambda one: one.name if isinstance(one, optimizers.Optimizer) else "",
)
def test_an_optimizer_that_is_refused_says_what_to_write(optimizer: Any, said: str) -> None:
    model = model_with(optimizer)
    with pytest.raises(InputError, match=said):
        sparsewire.keras.attach(model)
    assert "apply" not in vars(optimizer)
    if "accumulation" not in said and "4 times" not in said:
        sparsewire.keras.attach(model, "nonzero | memory=none").detach()


def test_an_optimizer_of_ones_own_is_known_by_what_it_is_derived_from() -> None:
    class Mine(optimizers.SGD):
        pass

    assert kind_of(Mine(0.1)) == "SGD"
    assert read_facts(Mine(0.1, momentum=0.5)).momentum == 0.5

    class Other(optimizers.Optimizer):
        pass

    assert "does not know this optimizer" in read_facts(Other(0.1)).refused


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheme": "auto"}, "for PyTorch"),
        ({"select_per": "bucket"}, "select_per='model'"),
        ({"exclude": ["nothing*"]}, "matches no parameter"),
        ({"memory": "gain(momentum=0.5)"}, "make them equal"),
        ({"memory": "dgc(momentum=0.9, nesterov=true)"}, "write memory=dgc"),
        ({"total_steps": 0}, "total_steps"),
        ({"timeout": -1}, "timeout is a number of seconds above 0"),
        ({"dense_below": 0.5}, "dense_below"),
        ({"optimizer": "sgd"}, "one of keras.optimizers"),
    ],
)
def test_a_setting_that_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        sparsewire.keras.attach(model_with(optimizers.SGD(0.1, momentum=0.9)), **settings)


def test_a_model_that_is_not_ready() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(InputError, match=r"call model.compile\(optimizer, …\) before attach"):
        sparsewire.keras.attach(model)
    model.compile("sgd", "mse")
    with pytest.raises(InputError, match=r"write model\.build"):
        sparsewire.keras.attach(model)
    with pytest.raises(InputError, match="takes a Keras model"):
        sparsewire.keras.attach(object())  # no model at all


def test_a_compiled_step_a_second_link_and_another_compile() -> None:
    model = model_with(optimizers.SGD(0.1), jit_compile=True)
    link = sparsewire.keras.attach(model, "topk(10%)")
    assert model.jit_compile is False
    with pytest.raises(InputError, match="has a link already"):
        sparsewire.keras.attach(model, "topk(10%)")
    model.compile("sgd", "mse")
    with pytest.raises(InputError, match="compiled again"):
        train(model, callbacks=[link])
    link.detach()
    with pytest.raises(InputError, match="the link is detached"):
        train(model, callbacks=[link])
    train(model)
    assert "detached" in repr(link)


def test_what_clips_behind_a_memory_is_warned_of() -> None:
    with pytest.warns(AccuracyWarning, match=r"write attach\(…, clip_norm=…\)"):
        sparsewire.keras.attach(model_with(optimizers.SGD(0.1, global_clipnorm=1.0)), "topk(10%)")


def test_a_process_of_several_that_do_not_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"init_process_group\(.*attach\(model, comm=…\)"):
        sparsewire.keras.attach(model_with(optimizers.SGD(0.1)))


def test_what_travels_dense_goes_by_path_and_size() -> None:
    link = sparsewire.keras.attach(model_with(optimizers.SGD(0.1)), "topk(10%)", exclude=["*/bias"], dense_below=64)
    assert link.settings.dense_names == {"1:bias", "3:bias"}
    assert link.settings.is_sparse("2:kernel", 64)


def test_what_is_saved_is_a_plain_model_and_a_state(tmp_path: Any) -> None:
    model = model_with(optimizers.SGD(0.1, momentum=0.9))
    with sparsewire.keras.attach(model, "topk(10%)", dense_below=0) as link:
        train(model, callbacks=[link])
        link.save(tmp_path)
        model.save(tmp_path / "model.keras")
        state = link.state_dict()
    loaded = keras.models.load_model(tmp_path / "model.keras")
    train(loaded)
    with sparsewire.keras.attach(loaded, "topk(10%)", dense_below=0) as link:
        link.load(tmp_path)
        assert link.step == state["step"] == 2
        assert set(link.state_dict()["buffers"]) == {"0:kernel", "1:bias", "2:kernel", "3:bias"}


# --- between steps ---


def epochs_of(batches: list[int], comm: Communicator) -> tuple[list[int], list[dict[str, float]], bool]:
    """A training whose epochs have so many batches here: how many each had, and the metrics."""
    meetings, had, logs = Meetings(lambda data: [bytes(part) for part in comm.all_gather(data)]), [], []
    for count in batches:
        meetings.begin_epoch()
        done = 0
        while done < count and meetings.batches(1):
            done += 1
        meetings.end_epoch()
        had.append(done)
        means, stops = meetings.means({"rank": comm.rank, "done": done, "name": "text"}, False)
        logs.append(means)
        if stops:
            break
    meetings.end_training()
    return had, logs, meetings.training_over


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ([[3, 3], [3, 3]], [3, 3]),
        ([[3, 2], [2, 3], [4, 4]], [2, 2]),
        ([[0, 2], [2, 2]], [0, 2]),
    ],
)
def test_the_shortest_epoch_is_that_of_all(plans: list[list[int]], expected: list[int]) -> None:
    told = run_ranks(len(plans), lambda comm: epochs_of(plans[comm.rank], comm))
    assert [had for had, _, _ in told] == [expected] * len(plans)
    mean = (len(plans) - 1) / 2
    assert all(logs == [{"rank": mean, "done": done} for done in expected] for _, logs, _ in told)


@pytest.mark.parametrize("plans", [[[2], [2, 2, 2]], [[2, 2], [2], [2, 2, 2]], [[2], [2, 0, 0]]])
def test_the_shortest_training_is_that_of_all(plans: list[list[int]]) -> None:
    told = run_ranks(len(plans), lambda comm: epochs_of(plans[comm.rank], comm))
    assert all(had in ([2], [2, 0]) and over for had, _, over in told)


def test_a_metric_that_only_some_ranks_have_is_theirs() -> None:
    def meet(comm: Communicator) -> Any:
        meetings = Meetings(lambda data: [bytes(part) for part in comm.all_gather(data)])
        meetings.end_epoch()
        return meetings.means({"loss": 1.0, **({"val_loss": 3.0} if comm.rank == 0 else {})}, comm.rank == 1)

    assert run_ranks(2, meet) == [({"loss": 1.0, "val_loss": 3.0}, True)] * 2


def test_without_keras_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("sparsewire.keras")]:
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'sparsewire[keras]'" in missing(monkeypatch, "sparsewire.keras", "keras")
