"""A federated server that several threads call at once: every message is counted once, in some order."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from federated_cases import STC, Crowd, same

from sparsewire.federated import Report, Server, UpdateRefused

THREADS, CLIENTS = 4, 12


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(calls: list[Callable[[], Any]]) -> None:
    """Runs the calls in threads that begin together; an error of any is raised here."""
    barrier, errors = threading.Barrier(len(calls)), list[BaseException]()

    def run(call: Callable[[], Any]) -> None:
        barrier.wait(60)
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors


def in_turn(crowd: Crowd, before: Server, messages: dict[int, bytes], report: Report) -> Server:
    """A server that got the counted messages one after another."""
    for client in report.counted:
        assert isinstance(client, int)
        before.add(client, messages[client])
    before.finish_round()
    return before


@pytest.mark.parametrize("clip", [None, "median"])
@pytest.mark.parametrize("rounds", [0, 1])
def test_each_message_is_counted_once_whoever_brings_it(clip: str | None, rounds: int) -> None:
    """In the first round, whose messages wait, and in the second, whose messages are summed up at once."""
    crowd = Crowd(STC, clients=CLIENTS, clip=clip)
    for _ in range(rounds):
        crowd.round(*range(CLIENTS))
    messages = {client: crowd.answer(client, examples=client + 1) for client in crowd.clients}
    alone, accepted = Server.from_state(crowd.server.state_dict()), list[int]()

    def bring(first: int) -> None:
        for place in range(CLIENTS):
            client = (first + place) % CLIENTS
            try:
                crowd.server.add(client, messages[client])
                accepted.append(client)
            except UpdateRefused:
                pass

    at_once([lambda first=first: bring(first % 3) for first in range(THREADS)])  # type: ignore[misc]
    report = crowd.server.finish_round()
    assert sorted(accepted) == sorted(report.counted) == list(range(CLIENTS))
    assert report.bytes_up == sum(map(len, messages.values()))
    assert same(crowd.server.weights, in_turn(crowd, alone, messages, report).weights)


def test_a_message_that_comes_while_it_is_being_counted_is_counted_once() -> None:
    """The second thread has all the time it needs between the first one's check and its sum."""
    crowd = Crowd(STC)
    message = crowd.answer(0, examples=3)
    read, second = crowd.server._inbox.read, threading.Thread(target=lambda: add_again())

    def add_again() -> None:
        try:
            crowd.server.add(0, message)
        except UpdateRefused:
            refused.append(0)

    def slow(*args: Any, **kwargs: Any) -> Any:
        found = read(*args, **kwargs)
        if second.ident is None:
            second.start()
            second.join(0.5)
        return found

    refused = list[int]()
    crowd.server._inbox.read = slow  # type: ignore[method-assign]
    crowd.server.add(0, message)
    second.join(60)
    report = crowd.server.finish_round()
    assert refused == [0] and report.counted == (0,) and report.bytes_up == len(message) and report.examples == 3


def test_a_round_that_ends_in_between_takes_a_message_or_refuses_it() -> None:
    crowd = Crowd(STC, clients=CLIENTS)
    messages = {client: crowd.answer(client) for client in crowd.clients}
    alone, accepted, reports = Server.from_state(crowd.server.state_dict()), list[int](), list[Report]()

    def bring(client: int) -> None:
        try:
            crowd.server.add(client, messages[client])
            accepted.append(client)
        except UpdateRefused as error:
            assert "not asked to take part in round 1" in str(error)

    def end() -> None:
        reports.append(crowd.server.finish_round())

    calls: list[Callable[[], Any]] = [lambda client=client: bring(client) for client in messages]  # type: ignore[misc]
    at_once([*calls[:6], end, *calls[6:]])
    assert sorted(accepted) == sorted(reports[0].counted)
    if reports[0].counted:
        assert same(crowd.server.weights, in_turn(crowd, alone, messages, reports[0]).weights)


def test_whatever_is_read_beside_is_of_one_moment() -> None:
    """Broadcasts, states and weights while others add: every state goes on, every message leads to the same weights."""
    crowd = Crowd(STC, clients=CLIENTS)
    crowd.round(*range(CLIENTS))
    messages = {client: crowd.answer(client) for client in crowd.clients}
    states, sent = list[Any](), list[bytes]()

    def watch() -> None:
        for stranger in range(100, 120):
            states.append(crowd.server.state_dict())
            sent.append(crowd.server.broadcast(stranger, asks=False))

    at_once([watch, *(lambda client=client: crowd.server.add(client, messages[client]) for client in messages)])  # type: ignore[misc]
    for state in states:
        assert len(state["open"]["counted"]) == len(state["open"]["norms"])
        assert state["total"]["weight"] == sum(state["open"]["counted"].values())
        Server.from_state(state)
    assert len(set(sent)) == 1


def test_a_copy_has_a_lock_of_its_own() -> None:
    crowd = Crowd(STC)
    crowd.round(0)
    twin = copy.deepcopy(crowd.server)
    crowd.round(1)
    assert twin.round == 1 and crowd.server.round == 2 and twin._lock is not crowd.server._lock
