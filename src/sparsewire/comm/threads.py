"""Ranks as threads of one process: for tests, notebooks and simulations."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..errors import CommArgumentError, CommError, CommMismatch, CommTimeout, PeerFailed, add_note
from .base import (
    Array,
    BytesLike,
    Communicator,
    Halves,
    add_bfloat16,
    as_bytes,
    check_parts,
    check_peer,
    check_reducible,
    check_root,
)

T = TypeVar("T")
GRACE = 2.0  # after a failure the others end at their next collective; a rank stuck elsewhere is left behind
REDUCE: dict[str, Callable[[Array, Array], Array]] = {"sum": np.add, "max": np.maximum, "bor": np.bitwise_or}


def run_ranks(n: int, fn: Callable[[Communicator], T], timeout: float = 60.0) -> list[T]:
    """Run `fn(comm)` on n ranks and return their results in rank order.

    The first error that a rank raises ends the others at their next collective and is raised again here, with
    a note that names the rank. A collective that waits longer than `timeout` seconds raises `CommTimeout`.

    >>> run_ranks(3, lambda comm: comm.rank * 10)
    [0, 10, 20]
    """
    if n < 1:
        raise CommArgumentError(f"a group needs at least one rank, not {n}")
    hub = Hub(n, timeout)
    results: dict[int, T] = {}

    def work(rank: int) -> None:
        try:
            results[rank] = fn(ThreadCommunicator(hub, rank))
        except BaseException as error:
            hub.leave(rank, error)
        else:
            hub.leave(rank)

    for rank in range(n):
        threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True).start()
    hub.join()
    return [results[rank] for rank in range(n)]


class ThreadCommunicator(Communicator):
    """One thread's end of a `Hub`."""

    def __init__(self, hub: Hub, rank: int) -> None:
        self.rank = rank
        self.size = hub.size
        self._hub = hub
        self._closed = False

    def all_gather(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        mine = as_bytes(data).tobytes()
        parts: list[bytes] = self._meet(f"all_gather(channel={channel!r})", mine, list, len(mine))
        return self._count([memoryview(part) for part in parts])

    def all_to_all(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        check_parts(self, parts)
        mine = [as_bytes(part).tobytes() for part in parts]
        sent = sum(map(len, mine)) - len(mine[self.rank])
        by_rank: list[list[bytes]] = self._meet(f"all_to_all(channel={channel!r})", mine, list, sent)
        return self._count([memoryview(one[self.rank]) for one in by_rank])

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        check_reducible(array, op)
        return self._reduce(f"all_reduce({array.dtype}{list(array.shape)}, {op!r})", array, REDUCE[op])

    def sum_bfloat16(self, bits: Halves) -> Halves:
        return self._reduce(f"sum_bfloat16({list(bits.shape)})", bits, add_bfloat16)

    def broadcast(self, data: BytesLike | None, root: int = 0) -> bytes:
        check_root(self, root)
        mine = as_bytes(data).tobytes() if self.rank == root and data is not None else b""
        parts: list[bytes] = self._meet(f"broadcast(root={root})", mine, list, len(mine))
        self.bytes_received += len(parts[root]) if self.rank != root else 0
        return parts[root]

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        check_peer(self, peer)
        self._check_open("send")
        message = as_bytes(data).tobytes()
        self.bytes_sent += len(message)
        self._hub.post((self.rank, peer, tag), message)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        check_peer(self, peer)
        self._check_open("recv")
        message = self._hub.fetch((peer, self.rank, tag))
        self.bytes_received += len(message)
        return message

    def barrier(self) -> None:
        self._meet("barrier()", None, list, 0)

    def close(self) -> None:
        self._close_splits()
        self._closed = True

    def _reduce(self, call: str, array: Array, add: Callable[[Array, Array], Array]) -> Array:
        """In rank order, so the rounding does not depend on who came first."""
        # The last rank to arrive adds up, while the others cannot yet change their arrays.
        total = self._meet(call, array, lambda arrays: np.asarray(functools.reduce(add, arrays)), array.nbytes)
        self.bytes_received += array.nbytes
        return np.array(total)

    def _part(self, members: Sequence[int]) -> ThreadCommunicator:
        return ThreadCommunicator(self._hub.part(tuple(members), len(self._splits)), members.index(self.rank))

    def _meet(self, call: str, item: Any, combine: Callable[[list[Any]], Any], nbytes: int) -> Any:
        self._check_open(call)
        self.collectives += 1
        self.bytes_sent += nbytes
        return self._hub.meet(self.rank, call, item, combine)

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise CommError(f"{call}: the communicator is closed")


class _Round:
    """One collective: what each rank brought, and then what came of it."""

    def __init__(self) -> None:
        self.call = ""
        self.items: dict[int, Any] = {}
        self.result: Any = None
        self.complete = False


class Hub:
    """Where the threads meet. One lock guards everything; whatever goes wrong wakes every waiter.

    A part of the ranks meets in a hub of its own under the same lock: who ends or fails does so in all hubs.
    """

    def __init__(self, size: int, timeout: float, whole: Hub | None = None, members: Sequence[int] = ()) -> None:
        self.size = size
        self.timeout = timeout
        self._whole, self._members = whole or self, members or range(size)
        self._parts: dict[tuple[tuple[int, ...], int], Hub] = {}
        self._changed: threading.Condition = threading.Condition() if whole is None else whole._changed
        self._round = _Round()
        self._mail: defaultdict[tuple[int, int, int], deque[bytes]] = defaultdict(deque)
        self._left: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self._failure: tuple[str, BaseException] | None = None

    def meet(self, rank: int, call: str, item: Any, combine: Callable[[list[Any]], Any]) -> Any:
        with self._changed:
            now = self._round
            self._check(call)
            if now.items and call != now.call:
                self._fail(CommMismatch(f"rank {rank} called {call}, ranks {sorted(now.items)} {now.call}"))
            now.call, now.items[rank] = call, item
            if len(now.items) == self.size:
                self._finish(now, combine)
            self._wait(call, lambda: now.complete, lambda: set(range(self.size)) - now.items.keys())
            return now.result

    def part(self, members: tuple[int, ...], number: int) -> Hub:
        """The hub of some of the ranks; `number` tells the splits of this one apart."""
        with self._changed:
            names = [self._members[rank] for rank in members]
            return self._parts.setdefault((members, number), Hub(len(names), self.timeout, self._whole, names))

    def post(self, route: tuple[int, int, int], message: bytes) -> None:
        with self._changed:
            self._check("send")
            self._mail[route].append(message)
            self._changed.notify_all()

    def fetch(self, route: tuple[int, int, int]) -> bytes:
        with self._changed:
            box = self._mail[route]
            self._wait(f"recv(tag={route[2]})", lambda: bool(box), lambda: {route[0]})
            return box.popleft()

    def leave(self, rank: int, error: BaseException | None = None) -> None:
        """A rank's function has ended."""
        with self._changed:
            self._left.add(rank)
            if error is not None:
                self._errors[rank] = error
                self._failure = self._failure or (f"rank {rank} raised {error!r}", error)
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for every rank; raise the error that started the trouble, not one that followed from it."""
        with self._changed:
            try:
                self._changed.wait_for(lambda: len(self._left) == self.size or bool(self._errors))
                self._changed.wait_for(lambda: len(self._left) == self.size, GRACE)
            except BaseException as error:
                self._failure = ("run_ranks was interrupted", error)
                self._changed.notify_all()
                raise
        if self._errors:
            raise _first(self._errors)

    def _finish(self, now: _Round, combine: Callable[[list[Any]], Any]) -> None:
        now.result = combine([now.items[rank] for rank in range(self.size)])
        now.complete = True
        self._round = _Round()
        self._changed.notify_all()

    def _wait(self, call: str, ready: Callable[[], bool], missing: Callable[[], set[int]]) -> None:
        deadline = time.monotonic() + self.timeout
        while not ready():
            self._check(call)
            if gone := {rank for rank in missing() if self._members[rank] in self._whole._left}:
                self._fail(CommMismatch(f"{call}: ranks {sorted(gone)} ended without it"))
            if time.monotonic() >= deadline:
                names = sorted(missing())
                self._fail(CommTimeout(f"{call}: ranks {names} did not arrive within {self.timeout:g} s"))
            self._changed.wait(max(0.0, deadline - time.monotonic()))

    def _check(self, call: str) -> None:
        if (failure := self._whole._failure) is not None:
            raise PeerFailed(f"{call}: {failure[0]}") from failure[1]

    def _fail(self, error: CommError) -> NoReturn:
        self._whole._failure = (str(error), error)
        self._changed.notify_all()
        raise error


def _first(errors: dict[int, BaseException]) -> BaseException:
    own = [rank for rank, error in errors.items() if not isinstance(error, PeerFailed)]
    rank = (own or list(errors))[0]
    add_note(errors[rank], f"raised by rank {rank}")
    return errors[rank]
