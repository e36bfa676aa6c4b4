"""Saving and resuming: exactly where it was, and a file that is whole whenever the writer dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from federated_cases import SCHEMES, STC, Crowd, same, trained

from sparsewire import InputError
from sparsewire.core.statefile import read_state, write_state
from sparsewire.federated import Client, Server

SETTINGS = {"mean": "sqrt", "optimizer": "sgd(rate=0.9, momentum=0.5)"}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("clip", [None, "median"])
def test_a_resumed_training_is_the_same_training(scheme: str, clip: str | None, tmp_path: Path) -> None:
    """Stopped in mid-round: one client has answered, one has trained, one has not received anything."""
    crowd = Crowd(scheme, STC, clip=clip, **SETTINGS)
    crowd.round(0, 1, 2)
    crowd.server.add(0, crowd.answer(0))
    waiting = crowd.answer(1)
    crowd.server.save(tmp_path / "server.npz")
    for number, client in crowd.clients.items():
        client.save(tmp_path / f"{number}.npz")
    loaded = Server.load(tmp_path / "server.npz"), {i: Client.load(tmp_path / f"{i}.npz") for i in crowd.clients}

    def go_on(server: Server, clients: dict[int, Client]) -> tuple[list[bytes], dict[str, np.ndarray]]:
        rng = np.random.default_rng(5)
        server.add(1, waiting)
        messages = []
        server.finish_round()
        for _ in range(2):
            for number in (2, 3):
                given = clients[number].receive(server.broadcast(number))
                messages.append(clients[number].update(trained(given, rng), examples=3))
                server.add(number, messages[-1])
            server.finish_round()
        return [*messages, server.broadcast(0)], server.weights

    first, second = go_on(crowd.server, crowd.clients), go_on(*loaded)
    assert first[0] == second[0] and same(first[1], second[1])


def test_what_was_sent_in_vain_is_not_forgotten_by_a_resumed_client(tmp_path: Path) -> None:
    for scheme in (STC, "topk(20%) | transform=fft(chunk=32) | memory=residual"):
        crowd = Crowd(scheme)
        crowd.answer(0)
        crowd.clients[0].save(tmp_path / "0.npz")
        again = Client.load(tmp_path / "0.npz")
        crowd.round(1)
        message = crowd.server.broadcast(0)
        assert same(again.receive(message), crowd.clients[0].receive(message))
        assert same(again.residual(), crowd.clients[0].residual()) and again.residual()["layer.weight"].any()


def test_a_client_without_its_weights_asks_for_all_of_them() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    light = Client.from_state(crowd.clients[0].state_dict(weights=False))
    assert light.round == -1 and same(light.residual(), crowd.clients[0].residual())
    message = crowd.server.broadcast(0, base=light.round)
    assert same(light.receive(message), crowd.server.weights)
    assert same(light.residual(), crowd.clients[0].residual())  # its update was counted


def test_the_servers_memory_does_not_grow_with_the_clients() -> None:
    """The model, its residual and sums, and rounds that together are no larger than the model."""
    sizes = {}
    for clients in (5, 50):
        crowd = Crowd(STC, clients=clients)
        for number in range(0, clients, 5):
            crowd.round(*range(number, number + 5))
        state = crowd.server.state_dict()
        arrays = [*state["weights"].values(), *state["total"]["sums"].values(),
                  *(kept for buffers in state["states"].values() for kept in buffers.values())]  # fmt: skip
        sizes[clients] = sum(array.nbytes for array in arrays) + sum(map(len, state["rounds"]))
    assert sizes[50] <= sizes[5] + crowd.server.model.dense_bytes


# --- files -----------------------------------------------------------------------------------------------------------

WRITER = """
import sys, numpy as np
from sparsewire.core.statefile import write_state
number = 0
print("ready", flush=True)
while True:
    number += 1
    write_state(sys.argv[1], {"kind": "test", "number": number, "array": np.full(200_000, number)})
"""


def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path, delays = tmp_path / "state.npz", np.random.default_rng(0).uniform(0.0, 0.05, 6)
    write_state(path, {"kind": "test", "number": 0, "array": np.zeros(200_000)})
    for delay in delays:
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            writer.kill()
        state = read_state(path, "test")
        assert (state["array"] == state["number"]).all()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.npz"
    write_state(path, {"kind": "test", "keys": {1: "a", "b": [b"bytes", np.float32(2)]}})

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_state(path, {"kind": "test"})
    assert read_state(path, "test") == {"kind": "test", "keys": {1: "a", "b": [b"bytes", 2.0]}}
    assert [one.name for one in tmp_path.iterdir()] == ["state.npz"]


@pytest.mark.parametrize("what", ["text", "empty", "other", "client", "pickle"])
def test_files_that_are_no_state_are_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    match what:
        case "text" | "empty":
            path.write_bytes(b"hello" * (what == "text"))
        case "other" | "pickle":
            with path.open("wb") as file:
                np.savez(file, tree=np.array([{"a": 1}], dtype=object) if what == "pickle" else np.ones(3))
        case "client":
            Client().save(path)
    with pytest.raises(InputError, match="holds no state"):
        Server.load(path)


@pytest.mark.parametrize("kind", [Server, Client])
def test_a_state_of_another_version_is_refused(kind: type[Server] | type[Client]) -> None:
    with pytest.raises(InputError, match="version 2 is needed, not 99"):
        kind.from_state({"version": 99})


def test_a_report_is_plain() -> None:
    from dataclasses import asdict

    report = asdict(Crowd(STC).round(0, 1))
    assert json.loads(json.dumps(report))["counted"] == [0, 1]
