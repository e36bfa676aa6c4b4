"""Clients and servers that went back to an older state: nothing is counted twice, nobody is stuck."""

from __future__ import annotations

import numpy as np
import pytest
from federated_cases import STC, Crowd, alike, same, trained, weights

from sparsewire.federated import Client, Server, StaleBase

EVERYTHING = "topk(100%) | values=raw | memory=residual"


def old_state(crowd: Crowd, client: int) -> Client:
    return Client.from_state(crowd.clients[client].state_dict())


# --- clients ---------------------------------------------------------------------------------------------------------


def test_a_counted_update_of_an_old_state_is_not_sent_again() -> None:
    """Saved with an update on its way, which was counted, as was the one after it."""
    crowd = Crowd(STC)
    crowd.server.add(0, crowd.answer(0))
    old = old_state(crowd, 0)
    assert old.sent
    crowd.server.finish_round()
    crowd.round(0)
    old.receive(crowd.server.broadcast(0, base=old.round))
    assert old.sent == {} and not any(kept.any() for kept in old.residual().values())


def test_a_residual_that_was_sent_since_is_not_sent_again() -> None:
    """Saved with a residual and before an update that was counted: the update has a part of that residual in it."""
    crowd = Crowd(STC)
    crowd.round(0)
    crowd.clients[0].receive(crowd.server.broadcast(0))
    old = old_state(crowd, 0)
    assert any(kept.any() for kept in old.residual().values())
    crowd.round(0)
    crowd.round(1)
    old.receive(crowd.server.broadcast(0, base=old.round))
    assert old.residual() == {}


def test_the_sum_of_what_is_applied_is_what_was_trained_even_if_a_client_goes_back() -> None:
    """A client trains once, is counted, goes back and takes part without training: the weights move once."""
    server, client = Server({"w": np.zeros(100, np.float32)}, EVERYTHING), Client(EVERYTHING)
    moved = client.receive(server.broadcast(0))
    saved = client.state_dict()
    server.add(0, client.update({"w": moved["w"] + 1}))
    made = client.state_dict()
    server.finish_round()
    client.receive(server.broadcast(0))
    server.add(0, client.update(client.weights))
    server.finish_round()
    for state in (saved, made):
        client = Client.from_state(state)
        given = client.receive(server.broadcast(0, base=client.round))
        server.add(0, client.update(given))
        server.finish_round()
        assert same(server.weights, {"w": np.ones(100, np.float32)})


def test_a_state_that_is_no_older_than_the_last_count_keeps_its_residual() -> None:
    crowd = Crowd(STC)
    crowd.round(0, 1)
    crowd.round(1)
    late = old_state(crowd, 0)
    before = late.residual()
    late.receive(crowd.server.broadcast(0))
    assert same(late.residual(), before) and any(kept.any() for kept in before.values())


def test_a_client_without_its_weights_can_be_saved_again() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    crowd.answer(0)
    light = crowd.clients[0].state_dict(weights=False)
    again = Client.from_state(light).state_dict(weights=False)
    assert alike(again, light) and light["pending"] is not None


def test_what_is_kept_for_another_model_is_dropped_without_weights_too() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    light = Client.from_state(crowd.clients[0].state_dict(weights=False))
    other = Server({"w": np.zeros((5, 100), np.float32)}, STC)
    moved = trained(light.receive(other.broadcast(0, base=-1)), crowd.rng)
    other.add(0, light.update(moved))
    assert list(light.residual()) == ["w"]


# --- updates in vain -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_dense_tensors_update_that_was_not_counted_is_sent_with_the_next(dtype: str) -> None:
    start = {"bias": np.zeros(8, dtype), "w": np.zeros(100, dtype), "batches": np.array(0)}
    server, client = Server(start, EVERYTHING), Client()
    for steps in (1, 2):
        given = client.receive(server.broadcast(0))
        assert same(given, start)
        moved = {name: array + np.asarray(steps, array.dtype) for name, array in given.items()}
        message = client.update(moved)
        if steps == 1:
            server.cancel_round()
    server.add(0, message)
    server.finish_round()
    assert all((array == 3).all() for array in server.weights.values())
    given = client.receive(server.broadcast(0))
    server.add(0, client.update(given))
    server.finish_round()
    assert same(server.weights, given) and not any(kept.any() for kept in client.residual().values())


def test_what_is_left_of_a_dense_tensor_survives_a_restart() -> None:
    crowd = Crowd(STC)
    crowd.answer(0)
    crowd.server.cancel_round()
    crowd.clients[0].receive(crowd.server.broadcast(0))
    again = old_state(crowd, 0)
    assert same(again.residual(), crowd.clients[0].residual()) and again.residual()["layer.bias"].any()


def test_a_scheme_that_keeps_nothing_keeps_nothing_of_dense_tensors() -> None:
    crowd = Crowd("topk(10%) | values=raw | memory=none")
    crowd.answer(0)
    crowd.server.cancel_round()
    crowd.clients[0].receive(crowd.server.broadcast(0))
    assert crowd.clients[0].residual() == {}


# --- servers ---------------------------------------------------------------------------------------------------------


def restored(rounds: int, pending: bool) -> tuple[Crowd, Client]:
    """A server that was restored to round 1, and a client that is `rounds` further, perhaps with an update unsent."""
    crowd = Crowd(STC)
    crowd.round(0, 1)
    saved = crowd.server.state_dict()
    for _ in range(rounds):
        crowd.round(0, 1)
    crowd.clients[0].receive(crowd.server.broadcast(0))
    if pending:
        crowd.answer(0)
    crowd.server = Server.from_state(saved)
    return crowd, crowd.clients[0]


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize("rounds", [1, 3])
def test_a_client_that_is_ahead_of_a_restored_server_follows_what_it_is_told(rounds: int, pending: bool) -> None:
    crowd, client = restored(rounds, pending)
    total = {name: sent.flat() for name, sent in client.sent.items()}
    expected = {name: kept + total.get(name, 0) for name, kept in client.residual().items()} | {
        name: sent for name, sent in total.items() if name not in client.residual()
    }
    with pytest.raises(StaleBase, match=r"server\.broadcast\(client, base=-1\)"):
        client.receive(crowd.server.broadcast(0))
    assert same(client.receive(crowd.server.broadcast(0, base=-1)), crowd.server.weights)
    assert client.round == 1 and client.sent == {} and same(client.residual(), expected)
    assert crowd.round(0, 2).counted == (0, 2)


@pytest.mark.parametrize("pending", [False, True])
def test_the_round_of_a_client_that_is_ahead_is_a_base_as_good_as_none(pending: bool) -> None:
    crowd, client = restored(2, pending)
    assert same(client.receive(crowd.server.broadcast(0, base=client.round)), crowd.server.weights)
    assert crowd.round(0).counted == (0,)


def test_an_old_state_is_known_as_old_after_the_server_went_back_as_well() -> None:
    """The client's rounds begin anew with the server's: what it sent in rounds that are gone says nothing any more."""
    crowd, client = restored(3, pending=False)
    client.receive(crowd.server.broadcast(0, base=-1))
    old = old_state(crowd, 0)
    crowd.round(0)
    old.receive(crowd.server.broadcast(0, base=old.round))
    assert old.residual() == {}


def test_an_update_of_a_model_that_is_gone_goes_back_at_once() -> None:
    """The restored server has come to the same round by other updates."""
    crowd, client = restored(1, pending=True)
    crowd.server.add(2, crowd.answer(2))
    crowd.server.finish_round()
    assert crowd.server.round == client.round
    client.receive(crowd.server.broadcast(0, base=-1))
    assert client.sent == {}
    client.update(weights())
