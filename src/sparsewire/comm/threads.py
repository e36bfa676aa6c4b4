"""Ranks as threads of one process: for tests, notebooks and simulations."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np

from sparsewire.errors import CommArgumentError, CommError, CommMismatch, CommTimeout, PeerFailed, add_note

from .base import Communicator
from .buffers import OPS, Array, BFloat16Bits, Bytes, BytesLike, Combine, add_bfloat16, as_bytes
from .checks import check_contiguous, check_parts, check_peer, check_reducible, check_root

T = TypeVar("T")
BLOCK = 2**16  # elements that are combined while they are in a core's cache
GRACE = 2.0  # after a failure the others end at their next collective; a rank stuck elsewhere is left behind


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
    """A rank that is a thread and meets the others in a `Hub`; payloads need no slots and are never padded."""

    def __init__(self, hub: Hub, rank: int) -> None:
        super().__init__(rank, hub.size)
        self._hub = hub

    def all_gather(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        mine = as_bytes(data).tobytes()
        parts: list[bytes] = self._collective(f"all_gather(channel={channel!r})", mine, list, len(mine))
        return self._count_received([memoryview(part) for part in parts])

    def all_to_all(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        check_parts(self, parts)
        mine = [as_bytes(part).tobytes() for part in parts]
        sent = sum(map(len, mine)) - len(mine[self.rank])
        rows: list[list[bytes]] = self._collective(f"all_to_all(channel={channel!r})", mine, list, sent)
        return self._count_received([memoryview(row[self.rank]) for row in rows])

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        check_reducible(array, op)
        return self._reduce(f"all_reduce({array.dtype}{list(array.shape)}, {op!r})", array, OPS[op])

    def all_reduce_in_place(self, array: Array, op: str = "sum") -> None:
        """Every rank combines its share of the elements, block by block, and writes it to all ranks' arrays."""
        check_reducible(array, op)
        check_contiguous(array)
        call = f"all_reduce_in_place({array.dtype}{list(array.shape)}, {op!r})"
        arrays: list[Array] = self._collective(call, array.reshape(-1), list, array.nbytes)
        self.bytes_received += array.nbytes
        first, last = (array.size * rank // self.size for rank in (self.rank, self.rank + 1))
        for start in range(first, last if self.size > 1 else first, BLOCK):
            parts = [other[start : min(start + BLOCK, last)] for other in arrays]
            with np.errstate(all="ignore"):
                total = functools.reduce(OPS[op], parts)
            for part in parts:
                part[:] = total
        self._hub.rendezvous(self.rank, call, None, list)  # until every share is written

    def sum_bfloat16(self, bits: BFloat16Bits) -> BFloat16Bits:
        return self._reduce(f"sum_bfloat16({list(bits.shape)})", bits, add_bfloat16)

    def broadcast(self, data: BytesLike | None, root: int = 0) -> bytes:
        check_root(self, root)
        mine = as_bytes(data).tobytes() if self.rank == root and data is not None else b""
        parts: list[bytes] = self._collective(f"broadcast(root={root})", mine, list, len(mine))
        self.bytes_received += len(parts[root]) if self.rank != root else 0
        return parts[root]

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        check_peer(self, peer)
        self._check_usable("send")
        message = as_bytes(data).tobytes()
        self.bytes_sent += len(message)
        self._hub.send((self.rank, peer, tag), message)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        check_peer(self, peer)
        self._check_usable("recv")
        message = self._hub.receive((peer, self.rank, tag))
        self.bytes_received += len(message)
        return message

    def barrier(self) -> None:
        self._collective("barrier()", None, list, 0)

    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        hub = self._hub.subgroup(tuple(members), "gather")
        rows = hub.rendezvous(members.index(self.rank), call, mine.copy(), list, kind=f"gather of {mine.size} bytes")
        everyone[:] = np.concatenate(rows)

    def _subgroup(self, members: Sequence[int]) -> ThreadCommunicator:
        hub = self._hub.subgroup(tuple(members), f"split {len(self._splits)}")
        return ThreadCommunicator(hub, members.index(self.rank))

    def _reduce(self, call: str, array: Array, combine: Combine) -> Array:
        """In rank order, so the rounding does not depend on who came first."""
        # The last rank to arrive adds up, while the others cannot yet change their arrays.
        add_up = functools.partial(functools.reduce, combine)
        total = self._collective(call, array, lambda arrays: np.asarray(add_up(arrays)), array.nbytes)
        self.bytes_received += array.nbytes
        return np.array(total)

    def _collective(self, call: str, item: Any, combine: Callable[[list[Any]], Any], nbytes: int) -> Any:
        self._begin(call, nbytes)
        return self._hub.rendezvous(self.rank, call, item, combine)


class _Collective:
    """One collective: what each rank brought, and then the result."""

    def __init__(self) -> None:
        self.kind = ""
        self.items: dict[int, Any] = {}
        self.result: Any = None
        self.complete = False


class Hub:
    """The place where the threads meet. One lock guards everything; whatever goes wrong wakes every waiter.

    A subgroup of the ranks has a hub of its own under the same lock: a rank that ends or fails does so in all hubs.
    """

    def __init__(self, size: int, timeout: float, top: Hub | None = None, members: Sequence[int] = ()) -> None:
        self.size = size
        self.timeout = timeout
        self._top, self._members = top or self, members or range(size)
        self._subgroups: dict[tuple[tuple[int, ...], str], Hub] = {}
        self._changed: threading.Condition = threading.Condition() if top is None else top._changed
        self._current = _Collective()
        self._mailboxes: defaultdict[tuple[int, int, int], deque[bytes]] = defaultdict(deque)
        self._left: set[int] = set()
        self._errors: dict[int, BaseException] = {}
        self._failure: tuple[str, BaseException] | None = None

    def rendezvous(
        self, rank: int, call: str, item: Any, combine: Callable[[list[Any]], Any], kind: str | None = None
    ) -> Any:
        """What `combine` makes of every rank's item. All ranks must bring the same kind, by default the same call."""
        kind = call if kind is None else kind
        with self._changed:
            now = self._current
            self._check(call)
            if now.items and kind != now.kind:
                self._fail(CommMismatch(f"rank {rank} called {kind}, ranks {sorted(now.items)} {now.kind}"))
            now.kind, now.items[rank] = kind, item
            if len(now.items) == self.size:
                self._finish(now, combine)
            self._wait(call, lambda: now.complete, lambda: set(range(self.size)) - now.items.keys())
            return now.result

    def subgroup(self, members: tuple[int, ...], purpose: str) -> Hub:
        """The hub of some of the ranks, one for each purpose."""
        with self._changed:
            if (members, purpose) not in self._subgroups:
                top_ranks = [self._members[rank] for rank in members]
                self._subgroups[members, purpose] = Hub(len(members), self.timeout, self._top, top_ranks)
            return self._subgroups[members, purpose]

    def send(self, route: tuple[int, int, int], message: bytes) -> None:
        with self._changed:
            self._check("send")
            self._mailboxes[route].append(message)
            self._changed.notify_all()

    def receive(self, route: tuple[int, int, int]) -> bytes:
        with self._changed:
            box = self._mailboxes[route]
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
            raise _first_error(self._errors)

    def _finish(self, now: _Collective, combine: Callable[[list[Any]], Any]) -> None:
        now.result = combine([now.items[rank] for rank in range(self.size)])
        now.complete = True
        self._current = _Collective()
        self._changed.notify_all()

    def _wait(self, call: str, ready: Callable[[], bool], missing: Callable[[], set[int]]) -> None:
        deadline = time.monotonic() + self.timeout
        while not ready():
            self._check(call)
            if gone := {rank for rank in missing() if self._members[rank] in self._top._left}:
                self._fail(CommMismatch(f"{call}: ranks {sorted(gone)} ended without it"))
            if time.monotonic() >= deadline:
                names = sorted(missing())
                self._fail(CommTimeout(f"{call}: ranks {names} did not arrive within {self.timeout:g} s"))
            self._changed.wait(max(0.0, deadline - time.monotonic()))

    def _check(self, call: str) -> None:
        if (failure := self._top._failure) is not None:
            raise PeerFailed(f"{call}: {failure[0]}") from failure[1]

    def _fail(self, error: CommError) -> NoReturn:
        self._top._failure = (str(error), error)
        self._changed.notify_all()
        raise error


def _first_error(errors: dict[int, BaseException]) -> BaseException:
    own = [rank for rank, error in errors.items() if not isinstance(error, PeerFailed)]
    rank = (own or list(errors))[0]
    add_note(errors[rank], f"raised by rank {rank}")
    return errors[rank]
