"""Two routes that take the slices of all ranks to their owners."""

from __future__ import annotations

from math import gcd

from sparsewire.comm import Communicator

from .shares import Shares

TAG = 43


def direct(shares: Shares) -> None:
    """One all_to_all: every rank sends each slice to its owner."""
    comm = shares.comm
    parts = [b"" if peer == comm.rank else shares.message([peer]) for peer in range(comm.size)]
    with shares.clock("exchange"):
        messages = comm.all_to_all(parts, shares.channel)
    for peer, message in enumerate(messages):
        if peer != comm.rank:
            shares.take(message, [comm.rank], peer, [peer])


def log(shares: Shares) -> None:
    """⌈log2 P⌉ rounds, as in SparDL, for any number of ranks: Bruck's all-gather backwards.

    A slice's distance is how many ranks further on its owner is. In the round of h = …, 4, 2, 1 every rank passes on
    the slices whose distance is h or more, to the rank h further on, and adds what it gets to its own of these slices.
    """
    comm, held = shares.comm, shares.comm.size
    for power in reversed(range((comm.size - 1).bit_length())):
        hop = 1 << power
        given, due = ([(comm.rank + at) % comm.size for at in part] for part in (range(hop, held), range(held - hop)))
        message = shares.message(given)
        with shares.clock("exchange"):
            received = shift(comm, message, hop)
        shares.take(received, due, (comm.rank - hop) % comm.size, given)
        held = hop


def shift(comm: Communicator, message: bytes, hop: int) -> bytes:
    """Sends to the rank `hop` further on and gets what the one as far back sent.

    Sends may block until they are received. So along each ring of ranks every second one receives first, and sends
    then: no rank waits for more than two others, also where a ring is odd and its last and its first both send first.
    """
    to, of = (comm.rank + hop) % comm.size, (comm.rank - hop) % comm.size
    rings = gcd(hop, comm.size)
    length = comm.size // rings
    place = comm.rank // rings * pow(hop // rings, -1, length) % length
    if place % 2:
        received = comm.recv(of, TAG)
        comm.send(message, to, TAG)
        return received
    comm.send(message, to, TAG)
    return comm.recv(of, TAG)
