"""`exchange=reduce_scatter`: bad bytes, other shapes and a rank that fails are an error on every rank; nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from failing import errors_of
from scatter_gradients import HEAD, every_route, gradient

import sparsewire as sw
from sparsewire.comm import Communicator, ThreadCommunicator
from sparsewire.errors import PeerError
from sparsewire.exchange import ExchangeContext, Piece, Selected, mean
from sparsewire.frames.wire import pack_message, unpack_message


def repacked(data: bytes, **changes: Any) -> bytes:
    return data[:HEAD] + pack_message(replace(frame, **changes) for frame in unpack_message(data[HEAD:]))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "a head alone": lambda data: data[:HEAD],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\1",
    "one bit": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "another digest": lambda data: data[:1] + b"abcd" + data[HEAD:],
    "a slice too long": lambda data: repacked(data, shape=(10_000,)),
    "too many entries": lambda data: repacked(data, count=10_000),
    "another dtype": lambda data: repacked(data, dtype="float64"),
    "noise": lambda data: np.random.default_rng(0).bytes(len(data)),
    "text that is none": lambda data: b"\0\xff\xfe rank 1",
}


def damaged(stage: str, damage: Callable[[bytes], bytes]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Communicator methods that spoil what rank 1 sends in a stage."""
    gather, swap, send = ThreadCommunicator.all_gather, ThreadCommunicator.all_to_all, ThreadCommunicator.send

    def spoil(comm: ThreadCommunicator, data: Any) -> Any:
        return damage(bytes(data)) if comm.rank == 1 and len(data) else data

    if stage == "gather":
        yield "all_gather", lambda comm, data, *rest: gather(comm, spoil(comm, data), *rest)
    else:
        yield "all_to_all", lambda comm, parts, *rest: swap(comm, [spoil(comm, part) for part in parts], *rest)
        yield "send", lambda comm, data, *rest: send(comm, spoil(comm, data), *rest)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("stage", ["scatter", "gather"])
@every_route
def test_bad_bytes_are_an_error_on_every_rank_that_names_the_peer(
    route: str, stage: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, method in damaged(stage, DAMAGE[damage]):
        monkeypatch.setattr(ThreadCommunicator, name, method)
    residuals = [np.full(257, 0.5, np.float32) for _ in range(5)]
    s = f"topk(9%) | values=raw | exchange=reduce_scatter(route={route})"
    errors = errors_of(5, lambda comm: mean(gradient(comm.rank, 257), s, comm, residual=residuals[comm.rank]))
    assert all(isinstance(error, PeerError) and "rank 1" in str(error) for error in errors), errors
    assert all((residual == 0.5).all() for residual in residuals)


@every_route
def test_tensors_of_one_size_and_another_shape_are_an_error_on_every_rank(route: str) -> None:
    def fn(comm: Communicator) -> None:
        x = np.ones((3, 4) if comm.rank else (4, 3), np.float32)
        mean(x, f"topk(k=2) | exchange=reduce_scatter(route={route})", comm)

    errors = errors_of(3, fn)
    assert all(isinstance(error, PeerError) and "shapes" in str(error) for error in errors), errors


@every_route
def test_a_rank_that_fails_on_the_way_keeps_nobody_waiting(route: str) -> None:
    """Its first messages were good; what it fails on is the sum."""

    def fn(comm: Communicator) -> None:
        plan = sw.scheme(f"topk(9%) | values=raw | memory=none | exchange=reduce_scatter(route={route})")
        x = gradient(comm.rank, 100)
        context = ExchangeContext(plan, comm)
        if comm.rank == 3:
            context = FailsLate(plan, comm)
        context.average([Piece("w", x, x.shape, "float32")])

    errors = errors_of(5, fn)
    assert isinstance(errors[3], ZeroDivisionError)
    others = [errors[rank] for rank in (0, 1, 2, 4)]
    assert all(isinstance(error, PeerError) and str(error).startswith("rank 3: ") for error in others), errors


class FailsLate(ExchangeContext):
    """A selection whose other numbers cannot be had, as they are asked for where sums are made."""

    def select(self, pieces: Sequence[Piece]) -> list[Selected]:
        offers = super().select(pieces)
        return [replace(offer, selection=replace(offer.selection, at=lambda where: 1 / 0)) for offer in offers]
