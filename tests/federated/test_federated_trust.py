"""What one client can do to a federated round: norms, examples, whole numbers, names, and the work for many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federated_cases import STC, Crowd, same

from sparsewire import InputError
from sparsewire.federated import Client, Limits, Report, Server, UpdateRefused

SIZE = 100
Change = tuple[float, int, int]  # of every weight, of the counter; examples


def server_of(**settings: Any) -> Server:
    start = {"w": np.zeros(SIZE, np.float32), "batches": np.array(0, np.int64)}
    return Server(start, settings.pop("scheme", "fedavg"), **settings)


def send(server: Server, client: int, change: Change) -> None:
    state, (step, steps, examples) = Client(name=client), change
    given = state.receive(server.broadcast(client, base=-1))
    moved = {"w": given["w"] + np.float32(step), "batches": given["batches"] + steps}
    server.add(client, state.update(moved, examples=examples))


def play(server: Server, changes: list[Change]) -> Report:
    for client, change in enumerate(changes):
        send(server, client, change)
    return server.finish_round()


# --- norms -----------------------------------------------------------------------------------------------------------


def test_counters_do_not_hide_an_update_that_is_too_large() -> None:
    server = server_of()
    play(server, [(0.01, 10**6, 1)] * 6)
    with pytest.raises(UpdateRefused, match="the norm 1e\\+03"):
        send(server, 9, (100.0, 10**6, 1))
    send(server, 9, (0.02, 10**6, 1))


def test_clipping_measures_weights_and_leaves_counters_alone() -> None:
    server = server_of(clip="median")
    play(server, [(0.1, 10**6, 1), (0.1, 10**6, 1), (50.0, 10**6, 1)])
    assert np.allclose(server.weights["w"], 0.1) and server.weights["batches"] == 10**6


@pytest.mark.parametrize("usual", [0.0, 1e-30])
def test_after_updates_of_nothing_there_is_still_a_limit_and_room_for_usual_ones(usual: float) -> None:
    server = server_of()
    play(server, [(usual, 0, 1)] * 8)
    for wild in (1e30, 1e4):
        with pytest.raises(UpdateRefused, match="the norm"):
            send(server, 9, (wild, 0, 1))
    send(server, 9, (0.01, 0, 1))
    assert server.finish_round().counted == (9,)


def test_the_first_round_has_a_limit() -> None:
    with pytest.raises(UpdateRefused, match=r"the norm 2e\+03, the server takes up to 1e\+03"):
        send(server_of(), 0, (200.0, 0, 1))


def test_a_counter_that_jumps_is_refused() -> None:
    server = server_of()
    state = Client()
    state.receive(server.broadcast(1))
    assert state._model is not None
    state._model.flat["batches"][:] = 1e300
    state._model.__dict__["digest"] = server.model.digest
    moved = {"w": np.zeros(SIZE, np.float32), "batches": np.array(0)}
    with pytest.raises(UpdateRefused, match=r"a whole number by more than 2\*\*53"):
        server.add(1, state.update(moved))


# --- examples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 4, 9])
@pytest.mark.parametrize("earlier", [0, 1])
def test_nobody_weighs_more_than_ten_times_the_median(place: int, earlier: int) -> None:
    """Nine clients change nothing; one says that it has seen a billion examples."""
    server = server_of()
    for _ in range(earlier):
        play(server, [(0.0, 0, 20)] * 10)
    changes = [(0.0, 0, 20)] * 10
    changes[place] = (1.0, 0, 10**9)
    report = play(server, changes)
    assert report.examples == 9 * 20 + 200
    assert np.allclose(server.weights["w"], 200 / 380)


def test_of_two_clients_the_smaller_claim_decides() -> None:
    server = server_of()
    play(server, [(0.0, 0, 1), (1.0, 0, 10**9)])
    assert np.allclose(server.weights["w"], 10 / 11)


def test_claims_within_ten_times_the_median_count_as_they_are() -> None:
    server = server_of()
    assert play(server, [(0.0, 0, 10), (0.0, 0, 10), (1.0, 0, 80)]).examples == 100
    assert np.allclose(server.weights["w"], 0.8)


def test_the_cap_can_be_set_or_left_out() -> None:
    free = server_of(limits=Limits(examples_ratio=None))
    assert play(free, [(0.0, 0, 1), (0.0, 0, 1), (1.0, 0, 10**9)]).examples == 10**9 + 2
    tight = server_of(limits=Limits(examples_ratio=1))
    assert play(tight, [(0.0, 0, 4), (0.0, 0, 4), (1.0, 0, 10**9)]).examples == 12
    with pytest.raises(InputError, match="examples_ratio is 1 or more"):
        Limits(examples_ratio=0.5)


@pytest.mark.parametrize("name", ["max_bytes", "max_examples", "max_norm", "norm_ratio", "examples_ratio"])
@pytest.mark.parametrize("value", ["x", float("nan"), -1, 0, True, [1]])
def test_limits_are_numbers(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is a number above 0"):
        Limits(**{name: value})


def test_updates_of_the_first_round_wait_in_bounded_memory() -> None:
    """Dense messages: five of them take more than twice the model, and are counted then."""
    server = server_of(scheme="fedavg")
    held = []
    for client in range(12):
        send(server, client, (0.5, 0, 10 if client else 10**9))
        held.append(sum(map(len, server.state_dict()["open"]["held"].values())))
    assert max(held) < 6 * server.model.dense_bytes and held[-1] == 0
    assert server.finish_round().examples == 11 * 10 + 100


def test_a_round_whose_updates_wait_is_saved_with_them() -> None:
    """Both servers end the round with the same bits."""
    server = server_of(scheme=STC)
    for client in range(3):
        send(server, client, (0.5, 1, 10 if client else 10**9))
    twin = Server.from_state(server.state_dict())
    assert twin.finish_round() == server.finish_round() and same(twin.weights, server.weights)


# --- the report ------------------------------------------------------------------------------------------------------


def test_strangers_are_counted_and_a_hundred_are_named() -> None:
    crowd = Crowd(STC)
    message = crowd.answer(0)
    for number in range(1000):
        with pytest.raises(UpdateRefused):
            crowd.server.add(f"stranger {number}", message)
    report = crowd.server.finish_round()
    assert len(report.refused) == 100 and report.strangers == 1000


def test_a_strangers_name_is_kept_if_it_is_short() -> None:
    crowd = Crowd(STC)
    for name in ("x" * 10**6, 1 << 250, "mallory"):
        with pytest.raises(UpdateRefused):
            crowd.server.add(name, b"")
    report = crowd.server.finish_round()
    assert list(report.refused) == [1 << 250, "mallory"] and report.strangers == 3
    with pytest.raises(InputError, match="a client's id is"):
        crowd.server.add(1 << 10**6, b"")


def test_a_client_that_was_asked_is_named_beside_any_number_of_strangers() -> None:
    crowd = Crowd(STC)
    message = crowd.answer(0)
    for client in (*(f"stranger {number}" for number in range(200)), 0):
        with pytest.raises(UpdateRefused):
            crowd.server.add(client, message[:-1])
    assert "checksum" in crowd.server.finish_round().refused[0]


def test_a_counted_message_that_comes_again_is_told_apart() -> None:
    crowd = Crowd(STC)
    message = crowd.answer(0)
    crowd.server.add(0, message)
    for again in (message, b"anything"):
        with pytest.raises(UpdateRefused, match="has been counted already"):
            crowd.server.add(0, again)
    report = crowd.server.finish_round()
    assert report.counted == report.repeated == (0,) and report.refused == {} and report.missing == ()


def test_an_update_that_was_read_is_noted_once_and_in_its_round() -> None:
    crowd = Crowd(STC)
    update = crowd.server.read(0, crowd.answer(0))
    crowd.server.note(0, update)
    with pytest.raises(UpdateRefused, match="late or has been counted already"):
        crowd.server.note(0, update)
    assert crowd.server.cancel_round().bytes_up == update.size
    with pytest.raises(UpdateRefused, match="late or has been counted already"):
        crowd.server.note(0, update)


def test_updates_that_are_averaged_elsewhere_do_not_end_in_a_mean() -> None:
    crowd = Crowd(STC)
    before = crowd.server.weights
    crowd.server.note(0, crowd.server.read(0, crowd.answer(0)))
    assert not crowd.server.finish_round().applied and same(crowd.server.weights, before)


# --- many clients ----------------------------------------------------------------------------------------------------


class Id(str):
    """A client's id that counts how often ids are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Id.compared += 1
        return str.__eq__(self, other)


def test_work_for_a_round_grows_with_the_clients_not_with_their_square() -> None:
    server, many = server_of(), 2000
    ids = [Id(f"client {number}") for number in range(many)]
    Id.compared = 0
    for client in ids:
        server.broadcast(client)
    for client in ids:
        with pytest.raises(UpdateRefused):
            server.add(client, b"")
    assert len(server.finish_round().refused) == many and Id.compared < 20 * many


def kept_bytes(found: Any) -> int:
    """Of all messages in there."""
    if isinstance(found, bytes):
        return len(found)
    inner = found.values() if isinstance(found, dict) else found if hasattr(found, "__iter__") else ()
    return 0 if isinstance(found, str) else sum(map(kept_bytes, inner))


def test_messages_for_clients_that_come_back_take_no_more_than_three_models() -> None:
    """The rounds that are kept, the whole model's message, and those for clients that stand somewhere between."""
    server = Server({"w": np.zeros(5000, np.float32)}, "topk(1%) | values=raw | memory=none", keep_rounds=200)
    state, rng = Client(), np.random.default_rng(0)
    for _ in range(60):
        moved = state.receive(server.broadcast("a"))
        moved["w"] += rng.normal(size=5000).astype(np.float32)
        server.add("a", state.update(moved))
        server.finish_round()
    sent = [server.broadcast(f"of round {base}", base=base) for base in range(-1, server.round + 1)]
    assert sum(map(len, sent)) > 10 * server.model.dense_bytes
    assert kept_bytes(vars(server._history)) <= 3 * server.model.dense_bytes + 200
    assert sent == [server.broadcast(f"of round {base}") for base in range(-1, server.round + 1)]
