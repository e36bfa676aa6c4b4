"""Federated rounds of whole numbers, such as counters of batches: exact, or refused."""

from __future__ import annotations

import numpy as np
import pytest
from federated_cases import same

from sparsewire import InputError
from sparsewire.federated import Client, Server

TYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def extremes(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return max(int(info.min), -(2**52)), min(int(info.max), 2**52)


@pytest.mark.parametrize("dtype", TYPES)
def test_whole_numbers_are_exact_from_end_to_end(dtype: str) -> None:
    """What all clients agree on is what the server and they have afterwards, whatever the examples."""
    least, most = extremes(dtype)
    start, wanted = np.array([least, most, least], dtype), np.array([most - 1, least, most], dtype)
    server, clients = Server({"n": start}, "fedavg"), [Client(), Client(), Client()]
    for number, client in enumerate(clients):
        assert same(client.receive(server.broadcast(number)), {"n": start})
        server.add(number, client.update({"n": wanted}, examples=7**number * 3))
    server.finish_round()
    assert same(server.weights, {"n": wanted})
    assert same(clients[0].receive(server.broadcast(0)), {"n": wanted})
    assert same(Client().receive(server.broadcast("new")), {"n": wanted})
    assert same(Server.from_state(server.state_dict()).weights, {"n": wanted})


@pytest.mark.parametrize("number", [2**64 - 1, 2**53 + 1, 2**52 + 1, -(2**63), -(2**52) - 1])
def test_whole_numbers_that_messages_cannot_carry_are_refused(number: int) -> None:
    dtype = np.uint64 if number > 0 else np.int64
    with pytest.raises(InputError, match=r"'n' has whole numbers beyond ±2\*\*52.*leave it out"):
        Server({"n": np.array([number], dtype)})
    client = Client()
    client.receive(Server({"n": np.zeros(1, dtype)}).broadcast(1))
    with pytest.raises(InputError, match=r"beyond ±2\*\*52"):
        client.update({"n": np.array([number], dtype)})
    with pytest.raises(InputError, match=r"beyond ±2\*\*52"):
        Server({"n": np.zeros(1, dtype)}).publish({"n": np.array([number], dtype)})


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (np.zeros(2, np.int8), np.array([300, 0])),
        (np.zeros(2, np.uint8), np.array([-1, 0])),
        (np.zeros(2, bool), np.array([2, 0])),
        (np.zeros(2, np.float32), np.array([1e300, 0.0])),
    ],
)
def test_numbers_that_the_models_type_does_not_reach_are_refused(model: np.ndarray, given: np.ndarray) -> None:
    client = Client()
    client.receive(Server({"n": model}).broadcast(1))
    with pytest.raises(InputError, match="its type in the model, does not reach"):
        client.update({"n": given})
    client.update({"n": model})
