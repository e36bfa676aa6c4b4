"""What a stranger may send to a federated server or client: refused by name, and nothing has changed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from corpus import repair
from federated_cases import STC, Crowd, alike, same, trained, weights

import sparsewire as sw
from sparsewire import FrameError
from sparsewire.core.binary import varint
from sparsewire.errors import LimitExceeded, SparsewireError
from sparsewire.federated import Client, Limits, Server, UpdateRefused
from sparsewire.federated.coding import Coder
from sparsewire.federated.envelope import Up, pack_model, unpack_up
from sparsewire.federated.model import Model
from sparsewire.frames.wire import DOWN_MAGIC, VERSION, with_checksum

Forge = Callable[[Crowd, bytes], bytes]


def up(crowd: Crowd, message: bytes, **changes: object) -> bytes:
    return replace(unpack_up(message), **changes).pack()


def coded(crowd: Crowd, scheme: str, value: float, model: Model | None = None) -> bytes:
    """Frames by a coder that checks nothing."""
    known = model or crowd.server.model
    changes = {one.name: np.full(one.size, value, known.flat[one.name].dtype) for one in known.tensors}
    return Coder.of(scheme, 0).seal(known.tensors, changes, {}, 0).body


def other_model(crowd: Crowd, message: bytes) -> bytes:
    moved = weights()
    moved["layer.weight"] = np.ones((3, 3), np.float32)
    return up(crowd, message, body=coded(crowd, STC, 0.1, Model.of(moved, frozenset(), 64)))


def fewer_tensors(crowd: Crowd, message: bytes) -> bytes:
    return up(crowd, message, body=coded(crowd, STC, 0.1, Model.of({"w": np.ones(9)}, frozenset(), 0)))


def replay(crowd: Crowd, message: bytes) -> bytes:
    """An update that was right in an earlier round."""
    crowd.server.add(0, message)
    crowd.server.finish_round()
    crowd.answer(0)
    crowd.answer(1)
    return message


ROWS: list[tuple[str, Forge, str]] = [
    ("another model", other_model, "layer.weight"),
    ("fewer tensors", fewer_tensors, "tensors where the model has 4"),
    ("another model's digest", lambda c, m: up(c, m, digest=bytes(8)), "another model"),
    ("a round to come", lambda c, m: up(c, m, round=5), "round 5, the server is at round 0"),
    ("a round that no integer holds", lambda c, m: up(c, m, round=2**64 - 1), "server is at round 0"),
    ("replay", replay, "round 0, the server is at round 1"),
    ("NaN", lambda c, m: up(c, m, body=coded(c, STC, np.nan)), "not finite"),
    ("infinity", lambda c, m: up(c, m, body=coded(c, STC, np.inf)), "not finite"),
    ("an absurd norm", lambda c, m: up(c, m, body=coded(c, STC, 1e30)), "the norm"),
    ("another scheme", lambda c, m: up(c, m, body=coded(c, "topk(50%) | values=qsgd", 0.1)), "another scheme"),
    ("no examples", lambda c, m: up(c, m, examples=0), "0 examples"),
    ("absurdly many examples", lambda c, m: up(c, m, examples=2**60), "max_examples"),
    ("too many bytes", lambda c, m: m + bytes(10**6), "max_bytes"),
    ("no bytes", lambda c, m: b"", "too few"),
    ("garbage", lambda c, m: b"hello, server", "not a federated client's message"),
    ("a frame", lambda c, m: sw.encode(np.ones(9), "topk"), "but a sparsewire frame"),
    ("a message of the server's", lambda c, m: c.server.broadcast(3), "but a federated server's message"),
    ("another version", lambda c, m: m[:4] + b"\7" + m[5:], "version 7"),
    ("a flipped bit", lambda c, m: m[:40] + bytes([m[40] ^ 4]) + m[41:], "checksum"),
    ("cut short", lambda c, m: m[:-9], "checksum"),
    ("cut short, checksum mended", lambda c, m: repair(m[:-9]), "promised"),
    ("nothing but a head", lambda c, m: up(c, m, body=b""), "0 tensors"),
]


@pytest.mark.parametrize(("forge", "reason"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_bad_update_is_refused_by_name_and_the_round_goes_on(forge: Forge, reason: str) -> None:
    crowd = Crowd(STC)
    crowd.answer(1)
    bad = forge(crowd, crowd.answer(0, examples=5))
    before, state = crowd.server.weights, crowd.server.state_dict()["total"]
    kept = {name: array.copy() for name, array in state["sums"].items()}
    with pytest.raises(UpdateRefused, match=f"client 1: .*{reason}") as refused:
        crowd.server.add(1, bad)
    assert refused.value.client == 1 and same(crowd.server.weights, before)
    assert same(crowd.server.state_dict()["total"]["sums"], kept)
    report = crowd.round(2)
    assert report.counted == (2,) and list(report.refused) == [1] and report.applied


def test_a_second_update_and_one_of_a_stranger_are_refused() -> None:
    crowd = Crowd(STC)
    message = crowd.answer(0)
    crowd.server.add(0, message)
    with pytest.raises(UpdateRefused, match="client 0: its update of round 0 has been counted already"):
        crowd.server.add(0, message)
    with pytest.raises(UpdateRefused, match="client 'mallory': it was not asked to take part in round 0"):
        crowd.server.add("mallory", message)
    report = crowd.server.finish_round()
    assert report.counted == (0,) and "mallory" in report.refused


def test_after_a_refusal_the_right_message_is_still_counted() -> None:
    crowd = Crowd(STC)
    message = crowd.answer(0)
    with pytest.raises(UpdateRefused):
        crowd.server.add(0, message[:-1])
    crowd.server.add(0, message)
    report = crowd.server.finish_round()
    assert report.counted == (0,) and report.refused == {}


@pytest.mark.parametrize("limits", [Limits(max_norm=0.5), Limits(norm_ratio=0.01)])
def test_norms_have_a_limit_that_can_be_set(limits: Limits) -> None:
    crowd = Crowd("fedavg", limits=limits)
    with pytest.raises(UpdateRefused, match="the norm"):
        crowd.server.add(0, crowd.answer(0))
    calm = crowd.clients[1].receive(crowd.server.broadcast(1))
    crowd.server.add(1, crowd.clients[1].update(trained(calm, crowd.rng, 1e-9) | {"batches": calm["batches"]}))


def test_usual_norms_become_the_measure() -> None:
    crowd = Crowd("fedavg")
    for _ in range(2):
        crowd.round(0, 1, 2)
    got = crowd.clients[3].receive(crowd.server.broadcast(3))
    wild = crowd.clients[3].update(trained(got, crowd.rng, 20.0))
    with pytest.raises(UpdateRefused, match="the norm"):
        crowd.server.add(3, wild)


def test_mutated_updates_are_refused_or_change_nothing_but_their_own_round() -> None:
    crowd, rng = Crowd(STC), np.random.default_rng(0)
    message = crowd.answer(0)
    for _ in range(300):
        bad = bytearray(message)
        for place in rng.integers(5, len(bad), rng.integers(1, 4)):
            bad[place] = rng.integers(256)
        bad = repair(bytes(bad))  # a stranger can compute a checksum
        if bad == message:
            continue
        try:
            update = crowd.server.read(0, bad)
        except UpdateRefused:
            continue
        assert np.isfinite(update.norm) and [part.numel for part in update.parts] == [
            one.size for one in crowd.server.model.tensors
        ]


# --- what a client is sent -------------------------------------------------------------------------------------------


def test_mutated_broadcasts_change_nothing() -> None:
    crowd, rng = Crowd(STC), np.random.default_rng(0)
    crowd.round(0)
    crowd.round(1)
    message, client = crowd.server.broadcast(0), crowd.clients[0]
    refused = 0
    for _ in range(300):
        bad = bytearray(message)
        for place in rng.integers(5, len(bad), rng.integers(1, 4)):
            bad[place] = rng.integers(256)
        bad = repair(bytes(bad))
        twin = Client.from_state(client.state_dict())
        try:
            got = twin.receive(bad)
        except SparsewireError:
            refused += 1
            assert alike(twin.state_dict(), client.state_dict())
        else:
            assert same(got, crowd.server.weights)  # a byte that does not matter here, such as who was counted
    assert refused > 200


def claim(body: bytes) -> bytes:
    """A model's message with any body."""
    head = [DOWN_MAGIC, bytes([VERSION, 0]), varint(0), varint(0), varint(0), bytes(8)]
    return with_checksum([*head, body])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (pack_model((STC, STC), [], b""), "is not the server|are not the server"),
        (b"\x01a\x01a" + varint(2**40), "tensors in"),
        (b"\x01a\x01a\x01\x01w\x00\x02" + varint(2**40) + varint(2**20), "max_elements"),
        (b"\x01a\x01a\x01\x01w\x00\x02" + varint(2**62) + varint(2**62), "no server sends"),
        (b"\x01a\x01a\x01\x01w\x00\x03\x00" + varint(2**62) + varint(2**62), "no server sends"),
        (b"\x01a\x01a\x01\x01w\x00\x02\x00" + varint(2**60), "no server sends"),
        (b"\x01a\x01a\x01\x01w\xff\x01\x05", "type 127"),
        (b"\x01a\x01a\x02" + 2 * b"\x01w\x00\x01\x05", "one name"),
        (b"\xff\xff\x7fa", "a text of"),
        (b"\x01\xff\x01a\x00", "UTF-8"),
    ],
)
def test_claims_about_a_model_are_checked(body: bytes, error: str) -> None:
    client = Client()
    with pytest.raises(SparsewireError, match=error):
        client.receive(claim(body))
    assert client.round == -1


def test_a_client_takes_no_model_that_is_too_large_for_it() -> None:
    message = Server({"w": np.ones(1000)}).broadcast(1)
    with pytest.raises(LimitExceeded, match="max_elements=999"):
        Client(max_elements=999).receive(message)


def test_an_update_of_a_client_is_no_message_for_one() -> None:
    crowd = Crowd(STC)
    with pytest.raises(FrameError, match="but a federated client's message"):
        Client().receive(crowd.answer(0))
    assert struct.unpack("<I", crowd.answer(1)[-4:])[0] != zlib.crc32(b"")
    assert isinstance(unpack_up(crowd.answer(2)), Up)
