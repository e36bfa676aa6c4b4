"""Federated rounds: the same bits everywhere, nothing lost, clients that come and go."""

from __future__ import annotations

import numpy as np
import pytest
from federated_cases import DTYPES, SCHEMES, STC, Crowd, same, trained, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsewire import InputError
from sparsewire.federated import Client, Server, StaleBase, UpdateRefused
from sparsewire.federated.envelope import MODEL, PATCH, ROUNDS, unpack_down

# --- the same bits everywhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_clients_have_the_servers_bits_whatever_they_missed(scheme: str, dtype: str) -> None:
    crowd = Crowd(scheme, dtype=dtype)
    for _ in range(8):
        crowd.round(*crowd.rng.choice(5, 2, replace=False).tolist())
    for client, state in crowd.clients.items():
        assert same(state.receive(crowd.server.broadcast(client)), crowd.server.weights)
    assert not same(crowd.server.weights, weights(dtype))


@settings(max_examples=15, deadline=None)
@given(up=st.sampled_from(SCHEMES), down=st.sampled_from(SCHEMES),
       rounds=st.lists(st.sets(st.integers(0, 4), max_size=4), max_size=8))  # fmt: skip
def test_any_pair_of_schemes_and_any_attendance(up: str, down: str, rounds: list[set[int]]) -> None:
    crowd = Crowd(up, down)
    for clients in rounds:
        assert crowd.round(*sorted(clients)).counted == tuple(sorted(clients))
    assert same(crowd.clients[0].receive(crowd.server.broadcast(0)), crowd.server.weights)


def test_a_bfloat16_model_is_given_as_float32() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    server = Server({"w": np.ones(100, ml_dtypes.bfloat16)}, STC)
    client = Client()
    server.add(1, client.update({"w": client.receive(server.broadcast(1))["w"] * np.float32(1.7)}))
    server.finish_round()
    moved = client.receive(server.broadcast(1))["w"]
    assert moved.dtype == np.float32 and same({"w": moved}, server.weights) and (moved != 1).sum() == 10


def test_whole_numbers_are_averaged_and_rounded() -> None:
    crowd = Crowd("fedavg")
    start = crowd.server.weights["batches"]
    for client, steps in ((0, 2), (1, 3)):
        got = crowd.clients[client].receive(crowd.server.broadcast(client))
        crowd.server.add(client, crowd.clients[client].update({**got, "batches": got["batches"] + steps}))
    crowd.server.finish_round()
    assert crowd.server.weights["batches"] - start == 2  # 2.5, to the even one


# --- conservation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if "decay" not in s and "fft" not in s and "dct" not in s])
def test_what_the_server_applies_is_what_the_clients_count_as_sent(scheme: str) -> None:
    crowd = Crowd(scheme, "fedavg")
    before, parts = crowd.server.weights, []
    for client in (3, 0, 4):
        crowd.server.add(client, crowd.answer(client, examples=7 * client + 1))
        parts.append((7 * client + 1, {name: one.flat() for name, one in crowd.clients[client].sent.items()}))
    crowd.server.finish_round()
    for name in ("layer.weight", "head.weight", "layer.bias"):
        total = np.zeros(before[name].size)
        for examples, sent in parts:
            total += sent[name].astype(np.float64) * examples
        mean = (total / sum(examples for examples, _ in parts)).astype(np.float32)
        assert np.array_equal(before[name].reshape(-1) - mean, crowd.server.weights[name].reshape(-1)), name


@pytest.mark.parametrize("scheme", [STC, "sbc(ratio=0.1)", "topk(20%) | values=qsgd(4) | memory=residual"])
def test_a_client_keeps_exactly_what_it_does_not_send(scheme: str) -> None:
    crowd, client = Crowd(scheme), 2
    for _ in range(4):
        state = crowd.clients[client]
        given = state.receive(crowd.server.broadcast(client))
        before = state.residual()
        moved = trained(given, crowd.rng)
        crowd.server.add(client, state.update(moved))
        for name, kept in state.residual().items():
            change = (given[name] - moved[name]).reshape(-1)
            total = change + before.get(name, np.zeros_like(change))
            sent = state.sent[name]
            total[sent.indices] -= sent.values
            assert np.array_equal(kept, total)
        crowd.server.finish_round()


def test_the_server_keeps_exactly_what_it_does_not_send() -> None:
    crowd = Crowd("fedavg", STC, clients=1)
    crowd.round(0)
    before, at = crowd.server.residual(), crowd.server.weights
    crowd.server.add(0, crowd.answer(0))
    mean = {name: one.flat() for name, one in crowd.clients[0].sent.items()}
    crowd.server.finish_round()
    for name, kept in crowd.server.residual().items():
        total = before[name] + mean[name]
        step = np.unique(np.abs(total - kept))  # nothing, or the one magnitude of a ternary step
        assert step.size == 2 and step[0] == 0
        assert np.array_equal(crowd.server.weights[name].reshape(-1), at[name].reshape(-1) - (total - kept))


def test_an_update_that_came_too_late_goes_back_into_the_residual() -> None:
    crowd = Crowd(STC)
    late = crowd.answer(0)
    kept = crowd.clients[0].residual()
    total = {name: sent.flat() + kept.get(name, 0) for name, sent in crowd.clients[0].sent.items()}
    crowd.round(1, 2)
    with pytest.raises(UpdateRefused, match=r"client 0: an update of round 0, the server is at round 1"):
        crowd.server.broadcast(0)
        crowd.server.add(0, late)
    crowd.clients[0].receive(crowd.server.broadcast(0))
    assert all(np.array_equal(kept, total[name]) for name, kept in crowd.clients[0].residual().items())
    assert set(total) == set(crowd.clients[0].residual()) and crowd.clients[0].sent == {}


def test_an_update_that_was_counted_does_not_come_back() -> None:
    crowd = Crowd(STC)
    crowd.round(0, 1)
    crowd.round(1)
    before = crowd.clients[0].residual()
    crowd.clients[0].receive(crowd.server.broadcast(0))
    assert same(crowd.clients[0].residual(), before)


def test_the_same_broadcast_twice_in_a_round_changes_nothing() -> None:
    crowd = Crowd(STC)
    message = crowd.answer(0)
    before = crowd.clients[0].residual()
    crowd.clients[0].receive(crowd.server.broadcast(0))
    assert same(crowd.clients[0].residual(), before)
    with pytest.raises(InputError, match="an update of round 0 was made already"):
        crowd.clients[0].update(crowd.server.weights)
    crowd.server.add(0, message)
    assert crowd.server.finish_round().counted == (0,)


# --- clients that come and go ----------------------------------------------------------------------------------------


def kind_after(scheme: str, rounds: int) -> int:
    """Of the message to a client that has been away for so many rounds."""
    start, rng = {"w": np.zeros(4000, np.float32)}, np.random.default_rng(0)
    server, clients = Server(start, scheme), (Client(), Client())
    for round_ in range(rounds):
        for number in (0, 1) if round_ == 0 else (0,):
            moved = trained(clients[number].receive(server.broadcast(number)), rng)
            server.add(number, clients[number].update(moved))
        server.finish_round()
    message = server.broadcast(1)
    assert len(message) < server.model.dense_bytes + 500 and same(clients[1].receive(message), server.weights)
    return unpack_down(message).kind


def test_whoever_was_away_gets_the_smallest_message() -> None:
    assert kind_after("stc(ratio=0.01)", 0) == MODEL
    assert kind_after("stc(ratio=0.01)", 1) == kind_after("stc(ratio=0.01)", 8) == ROUNDS
    assert kind_after("topk(40%) | values=raw", 8) == MODEL


def test_elements_that_change_again_and_again_are_sent_once() -> None:
    start = {"w": np.zeros(4000, np.float32)}
    server, clients = Server(start, "topk(k=50) | values=raw | memory=none"), (Client(), Client())
    for round_ in range(6):
        for number in (0, 1) if round_ == 0 else (0,):
            moved = clients[number].receive(server.broadcast(number))
            moved["w"][:50] += 1.0 + round_
            server.add(number, clients[number].update(moved))
        server.finish_round()
    message = server.broadcast(1)
    assert unpack_down(message).kind == PATCH and len(message) < 5 * 200
    assert same(clients[1].receive(message), server.weights)


def test_rounds_that_are_worth_less_than_the_model_are_kept() -> None:
    crowd = Crowd(STC, clients=2)
    for _ in range(60):
        crowd.round(0)
        assert crowd.server.cached_bytes <= crowd.server.model.dense_bytes
    assert len(crowd.server.broadcast(0)) < crowd.server.model.dense_bytes / 4
    assert same(crowd.clients[1].receive(crowd.server.broadcast(1)), crowd.server.weights)


def test_a_client_that_lost_its_state_is_told_what_to_do() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    crowd.round(0)
    new = Client(STC, name=0)
    with pytest.raises(StaleBase, match=r"server\.broadcast\(client, base=-1\)"):
        new.receive(crowd.server.broadcast(0))
    assert same(new.receive(crowd.server.broadcast(0, base=new.round)), crowd.server.weights)


def test_a_client_that_went_back_to_an_old_state_starts_from_there() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    old = Client.from_state(crowd.clients[0].state_dict())
    crowd.round(0)
    crowd.round(0)
    with pytest.raises(StaleBase, match="at round 0"):
        old.receive(crowd.server.broadcast(0))
    assert same(old.receive(crowd.server.broadcast(0, base=old.round)), crowd.server.weights)


def test_a_client_of_another_training_is_told_so_and_keeps_what_it_has() -> None:
    mine, other = Crowd(STC), Crowd(STC)
    for _ in range(2):
        mine.round(0)
        other.round(0, 1)
    before = mine.clients[0].weights
    with pytest.raises(StaleBase, match="another training"):
        mine.clients[0].receive(other.server.broadcast(0))
    assert same(mine.clients[0].weights, before) and mine.clients[0].round == 1


def test_a_client_may_begin_with_the_initial_weights() -> None:
    server, client = Server(weights(), STC, "stc"), Client(STC, weights=weights(), scheme_down="stc")
    first = server.broadcast(7, base=0)
    assert len(first) < 50 and same(client.receive(first), server.weights)
    with pytest.raises(InputError, match="needs the server's scheme"):
        Client(weights=weights())


def test_stragglers_and_clients_that_died_are_missing_and_the_round_goes_on() -> None:
    crowd = Crowd(STC)
    crowd.answer(0)  # never sent
    crowd.server.broadcast(1)  # never answers
    report = crowd.round(2, 3)
    assert report.counted == (2, 3) and report.missing == (0, 1) and report.applied and report.examples == 25


def test_a_round_without_updates_moves_nothing() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    before = crowd.server.weights
    report = crowd.round()
    assert not report.applied and same(before, crowd.server.weights) and crowd.server.round == 2
    assert same(crowd.clients[0].receive(crowd.server.broadcast(0)), before)
