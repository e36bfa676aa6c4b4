"""The communicator: what an exchange may ask of the network, built on one operation of an engine."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from sparsewire.errors import CommArgumentError, CommError, CommMismatch

from .buffers import OPS, Array, BFloat16Bits, Bytes, BytesLike, Combine, add_bfloat16, as_bytes
from .checks import check_contiguous, check_parts, check_peer, check_reducible, check_root
from .pairs import Mailbox, peers_by_round
from .slots import LABELS, SMALL, SlotAllToAll, SlotGather, label_of, length_of, pack, unpack

CHUNK = 2**26  # bytes that a gather of whole arrays receives at once: it holds an array of every rank


Watch = Callable[[str, int, float, float], None]  # name, bytes handed to the engine, start and end (perf_counter)


class Traffic(NamedTuple):
    """What a rank has handed to the engine, and the payloads that came back."""

    collectives: int
    bytes_sent: int
    bytes_received: int


class DeviceEngine(Protocol):
    """Another engine of the same ranks, for tensors of devices."""

    def sum(self, tensor: Any) -> None:
        """Adds up over the ranks, in the tensor's own memory."""


class Communicator(ABC):
    """One rank's end of a group of ranks. Every rank calls the same collectives in the same order, from one thread.

    An engine implements `_gather_equal`. Every other operation is built on that gather, combines numbers in the order
    of the ranks, and is there for an engine to override with what it does better.

    `collectives` and `bytes_sent` count what this rank handed to the engine, padding and lengths included,
    so reported traffic is what really left. `bytes_received` counts the payloads that came back. Those are this group's
    own; `traffic()` has those of the groups that it was split into as well.
    """

    engine: DeviceEngine | None = None  # for dense tensors of devices; None: they travel through the host

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.collectives = self.bytes_sent = self.bytes_received = 0
        self._watch: Watch | None = None  # is told of the engine's calls
        self._unusable = ""  # why no more collectives can be called
        self._splits: tuple[Communicator, ...] = ()
        self._slots = SlotGather(range(size), functools.partial(self._gather, "all_gather"))
        self._pair_slots = SlotAllToAll(rank, size, self._all_to_all_sized)
        self._mailboxes: dict[int, Mailbox] = {}

    @abstractmethod
    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        """Fills `everyone` with the bytes of every member, in the order of `members`; all bring equally many.

        `members` are ascending ranks of the group, two or more, and this rank is one of them; only they call it. It
        returns when all of them have, and copies what it needs of `mine` before. An engine raises `CommTimeout` for a
        member that does not come in time and `CommError` for any other failure, with `call` in the message. An engine
        that can only gather from all ranks raises `CommError` for fewer: it has then no `split`, `send`, `recv` and
        `all_to_all`, unless it overrides them.
        """

    def all_gather(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        """Every rank's bytes, in rank order; lengths may differ.

        The views are read-only and hold until the next all_gather, because buffers are reused. Give each stream of
        similar sizes (a bucket, a parameter) its own channel: a channel remembers how large its payloads are, and
        needs one collective instead of two.
        """
        return self._count_received(self._slots(data, channel))

    def all_to_all(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        """What every rank has for this one, in rank order: `parts` has a payload for each, and lengths may differ.

        The own part comes back as it is and is no traffic. Views and channels are as in `all_gather`: while every
        pair's payloads keep about their size, one collective moves them.
        """
        check_parts(self, parts)
        return self._count_received(self._pair_slots(parts, channel))

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        """A new array, combined over the ranks by `sum`, `max` or `bor`; the same bits on every rank."""
        check_reducible(array, op)
        return self._reduce_gathered("all_reduce", array, OPS[op])

    def all_reduce_in_place(self, array: Array, op: str = "sum") -> None:
        """`all_reduce` into the array itself, which is contiguous; after an error its numbers are undefined.

        Here by a copy; an engine that adds up in the caller's memory overrides it.
        """
        check_contiguous(array)
        array[...] = self.all_reduce(array, op)

    def sum_bfloat16(self, bits: BFloat16Bits) -> BFloat16Bits:
        """The sum over the ranks of bfloat16 numbers, which NumPy lacks, as their bits; each addition is rounded.

        2 bytes a number travel; the same bits on every rank.
        """
        return self._reduce_gathered("sum_bfloat16", bits, add_bfloat16)

    def broadcast(self, data: BytesLike | None, root: int = 0) -> bytes:
        """The root's bytes on every rank; what the others pass is ignored."""
        check_root(self, root)
        slot, rest = pack(as_bytes(data if self.rank == root and data is not None else b""), SMALL, root % LABELS)
        self._broadcast_equal(slot, root)
        if label_of(slot) != root % LABELS:
            raise CommMismatch(f"broadcast(root={root}): rank {root} called it with another root")
        rest = np.empty(max(0, length_of(slot) - SMALL), np.uint8) if self.rank != root else rest.copy()
        if rest.size:
            self._broadcast_equal(rest, root)
        self.bytes_received += length_of(slot) if self.rank != root else 0
        return unpack(slot, rest)

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        """Send to one rank; may block until the peer receives."""
        self._mailbox("send", peer).send(data, tag)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        """The next bytes that `peer` sent here with this tag; messages keep their order."""
        message = self._mailbox("recv", peer).receive(tag)
        self.bytes_received += len(message)
        return message

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._slots(b"", "barrier")

    def split(self, color: int) -> Communicator:
        """A group of the ranks that give the same color (0 or more), in the order of their ranks. Every rank calls it.

        It waits as long as this group does and closes with it, or before; its traffic counts in this group's.

        >>> from sparsewire.comm import run_ranks
        >>> run_ranks(4, lambda comm: repr(comm.split(comm.rank % 2)))[2]
        'ThreadCommunicator(rank=1, size=2)'
        """
        if not 0 <= color < 2**63:
            raise CommArgumentError(f"split: a color is 0 or more and below 2**63, not {color}")
        mine = color.to_bytes(8, "little")
        colors = [bytes(part) for part in self.all_gather(mine, "split")]
        group = self._subgroup([rank for rank, other in enumerate(colors) if other == mine])
        self._splits = (*self._splits, group)
        return group

    def traffic(self) -> Traffic:
        """This group's traffic and that of all groups that were split from it, closed or not."""
        counts = [(self.collectives, self.bytes_sent, self.bytes_received), *(part.traffic() for part in self._splits)]
        return Traffic(*map(sum, zip(*counts, strict=True)))

    def watch(self, watch: Watch | None) -> None:
        """Has it told, on the thread that calls, of every call of the engine, here and in the groups split off before.

        Over torch; other engines tell nothing.
        """
        self._watch = watch
        for part in self._splits:
            part.watch(watch)

    def close(self) -> None:
        """Lets go of buffers and of the groups that were split off; the user's own process group stays open."""
        self.engine = None
        for part in self._splits:
            part.close()
        self._unusable = self._unusable or "the communicator is closed"
        self._release_group()
        self._slots.clear()
        self._pair_slots.clear()
        self._mailboxes.clear()

    def _release_group(self) -> None:
        """Ends what the engine holds, before the buffers go that a collective on its way might still write to."""

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size})"

    def _subgroup(self, members: Sequence[int]) -> Communicator:
        """The group of these ranks, of which this rank is one; the members call it at the same `split`."""
        return Subgroup(self, members)

    def _broadcast_equal(self, buffer: Bytes, root: int) -> None:
        """Fills the buffer with the root's bytes; every rank knows how many these are."""
        for part, everyone in self._gather_chunks("broadcast", buffer):
            part[:] = everyone[root]

    def _all_to_all_sized(self, mine: Bytes, sizes: list[int], received: Bytes, received_sizes: list[int]) -> None:
        """Moves `sizes[peer]` bytes of `mine` to each peer and fills `received` with what the peers send, by rank.

        Both ends of a pair know both sizes. Here each pair of ranks gathers the larger of them.
        """
        self._begin("all_to_all", sum(map(max, sizes, received_sizes)))
        parts, places = _split(mine, sizes), _split(received, received_sizes)
        for peer in peers_by_round(self.rank, self.size):
            width = max(sizes[peer], received_sizes[peer])
            if width:
                own, both = np.zeros(width, np.uint8), np.empty((2, width), np.uint8)
                own[: sizes[peer]] = parts[peer]
                self._gather_equal("all_to_all", own, both.reshape(-1), sorted((self.rank, peer)))
                places[peer][:] = both[int(peer > self.rank), : received_sizes[peer]]

    def _reduce_gathered(self, call: str, array: Array, combine: Combine) -> Array:
        total = np.array(array, order="C")
        self.bytes_received += total.nbytes
        for part, everyone in self._gather_chunks(call, total.reshape(-1)):
            with np.errstate(all="ignore"):
                part[:] = functools.reduce(combine, everyone)
        return total

    def _gather_chunks(self, call: str, array: Array) -> Iterator[tuple[Array, Array]]:
        """Each chunk of the array, and a row for each rank with that rank's chunk."""
        step = max(1, CHUNK // (self.size * array.itemsize))
        for start in range(0, array.size, step):
            part = array[start : start + step]
            everyone = np.empty((self.size, part.size), part.dtype)
            self._gather(call, part.view(np.uint8), everyone.view(np.uint8).reshape(-1))
            yield part, everyone

    def _gather(self, call: str, mine: Bytes, everyone: Bytes) -> None:
        """One counted gather of all ranks."""
        self._begin(call, mine.size)
        if self.size == 1:
            everyone[:] = mine
        else:
            self._gather_equal(call, mine, everyone, range(self.size))

    def _mailbox(self, call: str, peer: int) -> Mailbox:
        check_peer(self, peer)
        self._check_usable(call)
        if peer not in self._mailboxes:
            self._mailboxes[peer] = Mailbox(self.rank, peer, self._gather_pair)
        return self._mailboxes[peer]

    def _gather_pair(self, call: str, members: Sequence[int], mine: Bytes, both: Bytes) -> None:
        self.bytes_sent += mine.size
        self._gather_equal(call, mine, both, members)

    def _begin(self, call: str, nbytes: int) -> None:
        """Counts a collective that is about to be handed to the engine."""
        self._check_usable(call)
        self.collectives += 1
        self.bytes_sent += nbytes

    def _check_usable(self, call: str) -> None:
        if self._unusable:
            raise CommError(f"{call}: {self._unusable}")

    def _count_received(self, parts: list[memoryview]) -> list[memoryview]:
        self.bytes_received += sum(len(part) for rank, part in enumerate(parts) if rank != self.rank)
        return parts


class Subgroup(Communicator):
    """Some ranks of a group whose engine has no groups of its own for them; they use the group's gather."""

    def __init__(self, parent: Communicator, members: Sequence[int]) -> None:
        super().__init__(members.index(parent.rank), len(members))
        self._parent, self._members = parent, members

    def _gather_equal(self, call: str, mine: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        self._parent._gather_equal(call, mine, everyone, [self._members[rank] for rank in members])


def _split(data: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    return np.split(data, np.cumsum(sizes)[:-1])
