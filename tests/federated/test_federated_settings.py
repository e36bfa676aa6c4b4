"""Federated rounds: means, optimizers, clipping, and wrong use."""

from __future__ import annotations

import math

import numpy as np
import pytest
from federated_cases import STC, Crowd, same, weights

from sparsewire import InputError, SchemeError
from sparsewire.federated import Client, Server

# --- means, optimizers, clipping -------------------------------------------------------------------------------------


def two(rule: str, **settings: object) -> np.ndarray:
    """The step that two clients bring about: one changes two elements, the other, with twice the examples, one."""
    server = Server(
        {"w": np.zeros(100, np.float32)}, "nonzero | values=raw | memory=none", "fedavg", mean=rule, **settings
    )
    for number, change in ((1, {0: 3.0, 1: 3.0}), (2, {0: 6.0})):
        client = Client()
        moved = client.receive(server.broadcast(number))
        for place, value in change.items():
            moved["w"][place] = value
        server.add(number, client.update(moved, examples=number))
    server.finish_round()
    return server.weights["w"][:3]


@pytest.mark.parametrize(
    ("rule", "expected"), [("all", [5.0, 1.0, 0.0]), ("senders", [5.0, 3.0, 0.0]), ("sqrt", [5.0, math.sqrt(3), 0.0])]
)
def test_means_are_weighted_by_examples(rule: str, expected: list[float]) -> None:
    assert np.allclose(two(rule), expected)


def test_clipping_scales_to_the_median_norm() -> None:
    norms = math.sqrt(18), 6.0
    middle = sum(norms) / 2
    assert np.allclose(two("all", clip="median"), [(3.0 + 2 * 6.0 * middle / 6.0) / 3, 1.0, 0.0])


def test_a_momentum_on_the_server() -> None:
    crowd, rate = Crowd("fedavg", clients=1, optimizer="sgd(rate=0.5, momentum=0.9)"), np.float32(0.5)
    name, momentum, expected = "layer.weight", np.float32(0), crowd.server.weights["layer.weight"].copy()
    for _ in range(3):
        crowd.server.add(0, crowd.answer(0))
        momentum = np.float32(0.9) * momentum + crowd.clients[0].sent[name].to_dense().reshape(expected.shape)
        expected = expected - rate * momentum
        crowd.server.finish_round()
    assert np.allclose(crowd.server.weights[name], expected, atol=1e-6)


def test_fedadam() -> None:
    crowd = Crowd("fedavg", clients=1, optimizer="adam(rate=0.1)")
    name = "head.weight"
    m, v, expected = np.zeros((20, 7)), np.zeros((20, 7)), crowd.server.weights[name].astype(np.float64)
    for _ in range(3):
        crowd.server.add(0, crowd.answer(0))
        change = crowd.clients[0].sent[name].to_dense().reshape(20, 7)
        m, v = 0.9 * m + 0.1 * change, 0.99 * v + 0.01 * change**2
        expected -= 0.1 * m / (np.sqrt(v) + 1e-3)
        crowd.server.finish_round()
    assert np.allclose(crowd.server.weights[name], expected, atol=1e-5)


def test_publish_loses_nothing_of_what_was_found_elsewhere() -> None:
    server = Server(weights(), "fedavg", "topk(20%) | values=raw | memory=residual")
    name, step = "head.weight", np.random.default_rng(5).normal(size=(20, 7)).astype(np.float32)
    start = server.weights[name]
    for _ in range(3):
        server.publish({**server.weights, name: server.weights[name] + step})
    moved = server.weights[name] - server.residual()[name].reshape(20, 7)
    assert np.allclose(moved, start + 3 * step, atol=1e-5) and server.residual()[name].any()
    client = Client()
    assert same(client.receive(server.broadcast("x")), server.weights)


# --- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Server({}), "arrays by name"),
        (lambda: Server({"w": np.array([1.0, np.nan])}), "not finite"),
        (lambda: Server(weights(), "topk | memory=dgc"), "memory=residual or none"),
        (lambda: Server(weights(), mean="median"), "mean is one of all, senders, sqrt"),
        (lambda: Server(weights(), clip="mean"), "clip is None or 'median'"),
        (lambda: Server(weights(), dense=["bias"]), "dense names bias"),
        (lambda: Server(weights()).broadcast(1.5), "a text or a whole number"),
        (lambda: Client().update(weights()), "no model yet"),
        (lambda: Client("topk(7%)").receive(Server(weights(), STC).broadcast(1)), "give both the same"),
    ],
)
def test_wrong_use_is_explained(make: object, message: str) -> None:
    with pytest.raises((InputError, SchemeError), match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("batches"), "names are not the model's: batches"),
        (lambda w: w.update(extra=np.ones(1)), "extra"),
        (lambda w: w.update({"layer.bias": np.ones(3, np.float32)}), "layer.bias"),
        (lambda w: w["head.weight"].fill(np.inf), "diverged"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(change: object, message: str) -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    moved = crowd.clients[0].receive(crowd.server.broadcast(0))
    before = crowd.clients[0].residual()
    change(moved)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        crowd.clients[0].update(moved)
    assert same(before, crowd.clients[0].residual())
    crowd.server.add(0, crowd.clients[0].update(crowd.clients[0].weights))


@pytest.mark.parametrize("examples", [0, -1, 1.5, True])
def test_examples_are_counted(examples: object) -> None:
    client = Client()
    given = client.receive(Server(weights()).broadcast("a"))
    with pytest.raises(InputError, match="examples is how many"):
        client.update(given, examples=examples)  # type: ignore[arg-type]


def test_a_step_beyond_all_numbers_is_not_taken() -> None:
    start = {"w": np.full(100, 3e38, np.float32)}
    server, client = Server(start, "fedavg", optimizer="sgd(rate=1e30)"), Client()
    moved = client.receive(server.broadcast(1))
    server.add(1, client.update({"w": moved["w"] * np.float32(0.5)}))
    report = server.finish_round()
    assert not report.applied and report.counted == () and same(server.weights, start)
