"""Damaged states, and messages that promise what cannot be: an error of sparsewire's own, and nothing has changed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from federated_cases import STC, Crowd, alike, same, trained, weights

import sparsewire as sw
from sparsewire import FrameError, InputError
from sparsewire.errors import SparsewireError
from sparsewire.federated import Client, Server
from sparsewire.federated.coding import UNCOMPRESSED, pack_weights
from sparsewire.federated.envelope import MODEL, Down, pack_model
from sparsewire.federated.model import Model, TensorInfo
from sparsewire.frames.wire import Frame, pack, pack_bundle, unpack_bundle

Path = tuple[Any, ...]
FULL = str(sw.scheme(STC))
GARBAGE: list[Any] = [
    None, "x", b"x", -1, 1.5, 2**70, float("nan"), True, [], {}, [None], {"x": None}, np.zeros(3), np.zeros(3, np.int8),
    np.array(None), np.zeros((2, 2, 2)), "topk(", {1: {2: 3}},
]  # fmt: skip


def states() -> dict[str, Any]:
    """A server in mid-round, first and second; a client with an update on its way, and one without its weights."""
    first = Crowd("topk(20%) | values=raw | memory=residual", mean="sqrt", optimizer="adam(rate=0.1)")
    first.server.add(0, first.answer(0))
    second = Crowd(STC, mean="senders", optimizer="sgd(momentum=0.9)")
    second.round(*range(5))
    second.server.add(0, second.answer(0))
    sending = second.clients[0]
    return {
        "first": first.server.state_dict(), "second": second.server.state_dict(), "client": sending.state_dict(),
        "light": sending.state_dict(weights=False), "new": Client().state_dict(),
    }  # fmt: skip


def paths(tree: Any, at: Path = ()) -> Iterator[Path]:
    """Of everything in a state; of long lists the first and the last."""
    yield at
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    for key in keys if len(keys) < 8 or isinstance(tree, dict) else [keys[0], keys[-1]]:
        yield from paths(tree[key], (*at, key))


def replaced(tree: Any, path: Path, *value: Any) -> Any:
    """A state with another value in one place, or with none."""
    if not path:
        return value[0]
    damaged = tree.copy()
    if len(path) == 1 and not value:
        del damaged[path[0]]
    else:
        damaged[path[0]] = replaced(tree[path[0]], path[1:], *value)
    return damaged


def use(state: Any, kind: str) -> None:
    """All that a loaded server or client can do."""
    if kind in ("first", "second"):
        server, client = Server.from_state(state), Client()
        moved = trained(client.receive(server.broadcast("new")), np.random.default_rng(0))
        server.add("new", client.update(moved))
        server.broadcast(1)
        server.finish_round()
        Server.from_state(server.state_dict()).broadcast(2)
    else:
        client, server = Client.from_state(state), Server(weights(), STC)
        given = client.receive(server.broadcast(0, base=client.round))
        client.update(given)
        Client.from_state(client.state_dict())


@pytest.mark.parametrize("kind", ["first", "second", "client", "light", "new"])
def test_a_damaged_state_is_refused_or_works(kind: str) -> None:
    """Two servers, and two clients, share the garbage: each puts half of it in a place, the other the other half."""
    state, refused = states()[kind], 0
    for path in list(paths(state)):
        half = (zlib.crc32(repr(path).encode()) + (kind in ("second", "light"))) % 2
        garbage = GARBAGE if kind == "new" else GARBAGE[half::2]
        damaged = [replaced(state, path, value) for value in garbage] + ([replaced(state, path)] if path else [])
        for one in damaged:
            try:
                use(one, kind)
            except SparsewireError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"{path} of {kind}: {error!r}") from error
    assert refused > 100


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["second", "client"])
def test_weights_that_are_not_finite_are_refused(kind: str, number: float) -> None:
    state = states()[kind]
    state["weights"]["layer.weight"][7] = number
    with pytest.raises(InputError, match=r"'layer.weight' has numbers that are not finite.*load an older one"):
        (Server if kind == "second" else Client).from_state(state)


@pytest.mark.parametrize(("kind", "path"), [
    ("second", ("states", "layer.weight", "residual")), ("second", ("kept", "head.weight", "momentum")),
    ("client", ("states", "layer.weight", "residual")), ("client", ("pending", 2, "layer.weight", 1)),
])  # fmt: skip
def test_buffers_with_nan_are_refused(kind: str, path: Path) -> None:
    state = states()[kind]
    array = state
    for key in path:
        array = array[key]
    state = replaced(state, path, np.full_like(array, np.nan))
    with pytest.raises(InputError, match="is damaged"):
        (Server if kind == "second" else Client).from_state(state)


def test_whole_numbers_of_a_state_are_whole() -> None:
    state = states()["second"]
    state["weights"]["batches"][:] = 0.5
    with pytest.raises(InputError, match="'batches'"):
        Server.from_state(state)


# --- wrong use -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["x", 1.5, True, b"1", [1], float("nan")])
def test_a_base_is_a_round(base: Any) -> None:
    crowd = Crowd(STC)
    with pytest.raises(InputError, match=r"base is the round of a client's weights, client\.round, or -1"):
        crowd.server.broadcast(0, base=base)
    assert crowd.server.finish_round().missing == ()


@pytest.mark.parametrize("message", [None, "text", 7, [1, 2]])
def test_messages_are_bytes(message: Any) -> None:
    crowd = Crowd(STC)
    crowd.server.broadcast(0)
    with pytest.raises(SparsewireError, match="a message is bytes, not"):
        crowd.server.add(0, message)
    with pytest.raises(SparsewireError, match="a message is bytes, not"):
        Client().receive(message)


@pytest.mark.parametrize("rounds", ["x", -1, 1.5, None])
def test_keep_rounds_is_a_number_of_rounds(rounds: Any) -> None:
    with pytest.raises(InputError, match="keep_rounds is a whole number"):
        Server(weights(), keep_rounds=rounds)


# --- shapes and numbers that cannot be -------------------------------------------------------------------------------

EMPTY = [(0, 2**62, 2**62), (2**62, 2**62, 0), (0, 2**60), (2**31, 0, 2**31)]


@pytest.mark.parametrize("shape", EMPTY)
def test_an_empty_tensor_with_sizes_that_overflow_is_refused_at_decode(shape: tuple[int, ...]) -> None:
    frame = Frame("float32", shape, 0, UNCOMPRESSED.record, b"", b"")
    with pytest.raises(FrameError, match="no tensor has the shape"):
        sw.decode(pack(frame))
    with pytest.raises(FrameError, match="no tensor has the shape"):
        unpack_bundle(pack_bundle([frame, frame]))
    with pytest.raises(InputError, match="fewer than 2"):
        sw.Sparse(np.zeros(0, np.int64), np.zeros(0, np.float32), shape)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2**59, 0), (0, 2**30, 2**29)])
def test_other_empty_tensors_are_decoded(shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.float64):
        assert sw.decode(sw.encode(np.zeros(0, dtype).reshape(shape), "topk(10%)")).to_dense().shape == shape


def model_message(model: Model, schemes: tuple[str, str] = (FULL, FULL)) -> bytes:
    """What a server that checks nothing would send."""
    return Down(MODEL, 5, 5, 0, model.digest, pack_model(schemes, model.given, pack_weights(model))).pack()


def bad_models() -> dict[str, bytes]:
    empty = Model([TensorInfo("w", (0, 2**62, 2**62), "float32")], {"w": np.zeros(0, np.float32)})
    counts = [TensorInfo("n", (2,), "int8", True)]
    return {
        "an empty tensor": model_message(empty),
        "300 as int8": model_message(Model(counts, {"n": np.array([300.0, 1.0])})),
        "half a counter": model_message(Model(counts, {"n": np.array([0.5, 1.0])})),
        "2**60 as int64": model_message(Model([TensorInfo("n", (1,), "int64", True)], {"n": np.array([2.0**60])})),
    }


@pytest.mark.parametrize("name", ["an empty tensor", "300 as int8", "half a counter", "2**60 as int64"])
def test_a_model_that_no_server_has_is_refused_before_it_is_taken(name: str) -> None:
    crowd = Crowd(STC)
    client = crowd.clients[0]
    crowd.answer(0)
    before = client.state_dict()
    with pytest.raises(FrameError):
        client.receive(bad_models()[name])
    assert alike(client.state_dict(), before)
    crowd.server.cancel_round()
    assert same(client.receive(crowd.server.broadcast(0)), crowd.server.weights)


def test_the_same_message_with_a_model_that_a_server_has_is_taken() -> None:
    assert same(Client().receive(model_message(Model.of(weights(), frozenset(), 64))), weights())
