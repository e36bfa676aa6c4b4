"""What a collective moves over one rank's link: a rule per collective, and a communicator that tallies by them.

What a rank hands to the engine is not what crosses its wire. These are the rules of the algorithms that gloo uses, and
NCCL and MPI for large messages, where P is the number of ranks:

- all_gather, ring: a rank passes on every message but its successor's, and receives all but its own: (P−1) × message
  each way, in P−1 rounds (by recursive doubling the same bytes in ⌈log2 P⌉).
- all_reduce, ring: 2(P−1)/P × array each way, in 2(P−1) rounds (by recursive halving and doubling in 2⌈log2 P⌉); each
  rank adds up (P−1)/P × array.
- all_to_all, pairwise: a rank sends each other rank's part and receives its own from each, in P−1 rounds.
- broadcast, binomial tree: ⌈log2 P⌉ rounds; the root sends in every one of them.
- send and recv: the message, in one round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from sparsewire.comm import Communicator
from sparsewire.comm.buffers import Array, BFloat16Bits, Bytes, BytesLike, as_bytes


@dataclass(frozen=True)
class Volume:
    """One rank's bytes out, in and added up; rounds one after another, and the fewest that carry the same bytes."""

    sent: float = 0.0
    received: float = 0.0
    reduced: float = 0.0
    rounds: float = 0.0
    fewest: float = 0.0

    def __add__(self, other: Volume) -> Volume:
        return Volume(*(own + others for own, others in zip(astuple(self), astuple(other), strict=True)))

    @property
    def both(self) -> float:
        return self.sent + self.received


def doublings(size: int) -> int:
    """⌈log2 P⌉."""
    return (size - 1).bit_length()


def all_gather(sizes: Sequence[float], rank: int = 0) -> Volume:
    total, size = sum(sizes), len(sizes)
    return Volume(total - sizes[(rank + 1) % size], total - sizes[rank], 0, size - 1, doublings(size))


def all_reduce(nbytes: float, size: int) -> Volume:
    slices = (size - 1) / size * nbytes
    return Volume(2 * slices, 2 * slices, slices, 2 * (size - 1), 2 * doublings(size))


def all_to_all(out: Sequence[float], back: Sequence[float], rank: int = 0) -> Volume:
    rounds = len(out) - 1
    return Volume(sum(out) - out[rank], sum(back) - back[rank], 0, rounds, rounds)


def broadcast(nbytes: float, size: int, place: int = 0) -> Volume:
    """`place` is the rank counted from the root. In round j the places below 2^j send to those 2^j further on."""
    rounds = doublings(size)
    children = sum(place < 2**j < size - place for j in range(rounds))
    return Volume(children * nbytes, nbytes if place else 0.0, 0, rounds, rounds)


def message(sent: float = 0.0, received: float = 0.0) -> Volume:
    return Volume(sent, received, 0, 1, 1)


class Tally(Communicator):
    """Passes every call on, and adds up by collective what the rules say of it."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self.kinds: dict[str, Volume] = {}

    @property
    def total(self) -> Volume:
        return sum(self.kinds.values(), Volume())

    def all_gather(self, data: BytesLike, channel: str = "") -> list[memoryview]:
        parts = self._comm.all_gather(data, channel)
        self._add("all_gather", all_gather([len(part) for part in parts], self.rank))
        return parts

    def all_to_all(self, parts: Sequence[BytesLike], channel: str = "") -> list[memoryview]:
        received = self._comm.all_to_all(parts, channel)
        sizes = [as_bytes(part).size for part in parts]
        self._add("all_to_all", all_to_all(sizes, [len(part) for part in received], self.rank))
        return received

    def all_reduce(self, array: Array, op: str = "sum") -> Array:
        self._add("all_reduce", all_reduce(array.nbytes, self.size))
        return self._comm.all_reduce(array, op)

    def sum_bfloat16(self, bits: BFloat16Bits) -> BFloat16Bits:
        self._add("all_reduce", all_reduce(bits.nbytes, self.size))
        return self._comm.sum_bfloat16(bits)

    def broadcast(self, data: BytesLike | None, root: int = 0) -> bytes:
        received = self._comm.broadcast(data, root)
        self._add("broadcast", broadcast(len(received), self.size, (self.rank - root) % self.size))
        return received

    def send(self, data: BytesLike, peer: int, tag: int = 0) -> None:
        self._add("send", message(sent=as_bytes(data).size))
        self._comm.send(data, peer, tag)

    def recv(self, peer: int, tag: int = 0) -> bytes:
        received = self._comm.recv(peer, tag)
        self._add("recv", message(received=len(received)))
        return received

    def barrier(self) -> None:
        self._comm.barrier()

    def close(self) -> None:
        super().close()
        self._comm.close()

    def _gather_equal(self, call: str, own: Bytes, everyone: Bytes, members: Sequence[int]) -> None:
        self._comm._gather_equal(call, own, everyone, members)

    def _subgroup(self, members: Sequence[int]) -> Tally:
        """What a group that is split off moves is counted here."""
        part = Tally(self._comm._subgroup(members))
        part.kinds = self.kinds
        return part

    def _add(self, kind: str, volume: Volume) -> None:
        self.kinds[kind] = self.kinds.get(kind, Volume()) + volume
