"""Ranks of jax.distributed: the coordinator's key-value store moves small messages, device collectives large ones."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax._src import distributed  # jax has no public handle on the coordinator's store
from jax.experimental import multihost_utils

from sparsewire.errors import CommArgumentError, CommError, CommMismatch, CommTimeout, PeerFailed

from .background import within
from .base import Communicator
from .buffers import Bytes
from .slots import HEADER, SMALL

LARGE = 2**19  # bytes: above this a device collective is quicker than the store
CHUNK = 2**21  # bytes of one value in the store: grpc refuses messages above 4 MB
SLICE = 1.0  # seconds of waiting, between looks at what the others say
MARGIN = 2.0  # seconds beyond the timeout that a call to a store which is stopped or cut off is given
LONGEST = 2000  # characters of an error's text
MORE, LAST = b"\1", b"\0"  # the first byte of a chunk
_made = itertools.count()


class JaxCommunicator(Communicator):
    """The processes of `jax.distributed.initialize`. All of them make their communicators in the same order.

    A message of all ranks with `device_above` bytes or more travels as a device collective (gloo between CPUs, NCCL
    between GPUs), any other through the store. None keeps to the store, as every message has to within a callback of
    a jitted function, because the devices are then taken: `within_callback`. The ranks meet in the store before a
    device collective, which has no timeout of its own, and wait for its end for `timeout` seconds.

    A rank that fails can say why by `tell`; the others then raise that `PeerFailed` instead of waiting.
    """

    def __init__(self, timeout: float = 60.0, device_above: int | None = LARGE) -> None:
        state = distributed.global_state
        if state.client is None:
            raise CommError(
                "jax.distributed has no coordinator: call jax.distributed.initialize first, on every process"
            )
        if not timeout > 0:
            raise CommArgumentError(f"timeout is a number of seconds above 0, not {timeout!r}")
        super().__init__(state.process_id, state.num_processes)
        self.device_above = device_above
        self._client: Any = state.client
        self._name, self._timeout = f"sparsewire/{next(_made)}", timeout
        self._rounds: Counter[tuple[int, ...]] = Counter()
        self._held: dict[tuple[int, ...], str] = {}  # this rank's last key for these members

    @contextmanager
    def within_callback(self) -> Iterator[None]:
        """Everything goes through the store meanwhile. Every rank enters it at the same collective."""
        above, self.device_above = self.device_above, None
        try:
            yield
        finally:
            self.device_above = above

    def tell(self, error: BaseException) -> None:
        """Writes down, for the others, that this rank fails; unless one of them was first."""
        text = f"rank {self.rank}: {type(error).__name__}: {error}"[:LONGEST]
        try:
            within(SLICE, lambda: self._client.key_value_set(self._failed, text), "tell")
        except (RuntimeError, CommTimeout):  # another rank was first, or the coordinator has gone
            return

    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        large = self.device_above is not None and mine.size >= self.device_above
        if large and len(members) == self.size:
            self._gather_on_devices(call, mine, everyone)
        else:
            self._gather_in_store(call, mine.tobytes(), everyone, members)

    def _gather_in_store(self, call: str, mine: bytes, everyone: Bytes, members: Sequence[int]) -> None:
        """When all have begun this round, all have read the one before: a rank's value of that one is deleted then."""
        base, key = self._next_round(members), tuple(members)
        self._put(call, f"{base}/{self.rank}", mine)
        for row, member in zip(everyone.reshape(len(members), -1), members, strict=True):
            found = mine if member == self.rank else self._get(call, f"{base}/{member}", member)
            if len(found) != row.size:
                raise self._end(CommMismatch(f"{call}: rank {member} brought {len(found)} bytes, not {row.size}"))
            row[:] = np.frombuffer(found, np.uint8)
        before, self._held[key] = self._held.get(key), f"{base}/{self.rank}"
        if before is not None:
            self._ask(call, self._client.key_value_delete, before)

    def _gather_on_devices(self, call: str, mine: Bytes, everyone: Bytes) -> None:
        """Padded to a power of two, as each new shape is compiled. First all ranks meet, and compare their sizes."""
        sizes = np.empty(8 * self.size, np.uint8)
        self._gather_in_store(call, mine.size.to_bytes(8, "little"), sizes, range(self.size))
        others = np.flatnonzero(sizes.view("<u8") != mine.size).tolist()
        if others:
            raise self._end(CommMismatch(f"{call}: ranks {others} brought another number of bytes than {mine.size}"))
        padded = np.zeros(1 << (mine.size - 1).bit_length(), np.uint8)
        padded[: mine.size] = mine
        gathered = self._ask(call, multihost_utils.process_allgather, padded)
        everyone.reshape(self.size, -1)[:] = np.asarray(gathered).reshape(self.size, -1)[:, : mine.size]

    def _broadcast_equal(self, buffer: Bytes, root: int) -> None:
        """A small buffer by a gather; a large one is written once, and deleted when every rank says that it is read."""
        if buffer.size <= HEADER + SMALL:
            return super()._broadcast_equal(buffer, root)
        self._begin("broadcast", buffer.size if self.rank == root else 0)
        key = f"{self._next_round([root])}/{root}"
        if self.rank == root:
            self._put("broadcast", key, buffer.tobytes())
        else:
            buffer[:] = np.frombuffer(self._get("broadcast", key, root), np.uint8)
        if self.size > 1:
            self._gather_in_store("broadcast", LAST, np.empty(self.size, np.uint8), range(self.size))
        if self.rank == root:
            self._ask("broadcast", self._client.key_value_delete, key)
        return None

    @property
    def _failed(self) -> str:
        return f"{self._name}/failed"

    def _next_round(self, members: Sequence[int]) -> str:
        key = tuple(members)
        self._rounds[key] += 1
        return f"{self._name}/{'-'.join(map(str, key))}/{self._rounds[key]}"

    def _put(self, call: str, key: str, data: bytes) -> None:
        starts = range(0, max(1, len(data)), CHUNK)
        for number, start in enumerate(starts):
            mark = LAST if start == starts[-1] else MORE
            self._ask(call, self._client.key_value_set_bytes, f"{key}/{number}", mark + data[start : start + CHUNK])

    def _get(self, call: str, key: str, member: int) -> bytes:
        chunks = [self._await(call, f"{key}/0", member)]
        while chunks[-1][:1] == MORE:
            chunks.append(self._await(call, f"{key}/{len(chunks)}", member))
        return b"".join(chunk[1:] for chunk in chunks)

    def _await(self, call: str, key: str, member: int) -> bytes:
        """The value that a member writes, as soon as it is there."""
        end = time.monotonic() + self._timeout
        while (left := end - time.monotonic()) > 0:
            try:
                found: bytes = self._client.blocking_key_value_get_bytes(key, int(1000 * min(left, SLICE)) + 1)
                return found
            except RuntimeError as error:
                self._check_waiting(call, error)
        raise self._end(CommTimeout(f"{call}: rank {member} did not arrive within {self._timeout:g} s"))

    def _check_waiting(self, call: str, error: RuntimeError) -> None:
        """Raises unless the value was only not there yet, and nobody has failed."""
        if "DEADLINE_EXCEEDED" not in str(error):
            raise self._end(_lost(call, error)) from error
        try:
            failed = self._client.key_value_try_get(self._failed)
        except RuntimeError as missing:
            if "NOT_FOUND" in str(missing):
                return
            raise self._end(_lost(call, missing)) from missing
        raise self._end(PeerFailed(f"{call}: another rank failed first: {failed}"))

    def _ask(self, call: str, ask: Callable[..., Any], *args: Any) -> Any:
        """What a call of jax gives; in a thread of its own, as it may wait for ever."""
        try:
            return within(self._timeout + MARGIN, lambda: ask(*args), call)
        except CommTimeout as error:
            raise self._end(error) from None
        except (RuntimeError, ValueError) as error:
            raise self._end(_lost(call, error)) from error

    def _end(self, error: CommError) -> CommError:
        """Ranks that have failed once no longer count the same rounds."""
        self._unusable = self._unusable or f"an earlier collective failed ({error})"
        return error


def _lost(call: str, error: Exception) -> CommError:
    return CommError(f"{call}: the coordinator or another rank has gone: {str(error)[:LONGEST]}")
