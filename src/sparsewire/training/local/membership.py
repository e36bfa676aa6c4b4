"""Membership: the ranks of a group, new or changed, come to one meeting number and the same common weights.

1. Every rank tells at which meeting it is, whether it has one prepared, and whether it is new.
2. The latest meeting that a rank has held counts. Whoever has the same one prepared (it failed in the meeting's last
   collective) holds it now, with the same bits: each rank had all that it needed. If nobody has held it, all leave it
   undone, and its local steps wait for the next meeting.
3. Whoever is still behind, or new, takes weights, outer buffers and counts of the first rank that is not. One that is
   new takes them as they are. One that missed meetings keeps its residual and its own local steps: the change that it
   has made since its last meeting, which no meeting had a part of, is put on top of the common weights.
4. Residuals follow the number of ranks, so that each rank's share in the mean of what was not sent stays as it was.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass

import numpy as np

from sparsewire.comm import Communicator
from sparsewire.errors import PeerError
from sparsewire.kernels import Array

from .rounds import Counts, Rounds, Visit, Weights

CHANNEL = "join"


@dataclass(frozen=True)
class Standing:
    """Where a rank stands."""

    meeting: int
    prepared: bool
    new: bool
    digest: int

    @property
    def reached(self) -> int:
        return self.meeting + self.prepared


@dataclass(frozen=True)
class Joined:
    """What the host has to do: finish a meeting that was held after all, or write other weights to the model."""

    held: Visit | None
    finite: bool
    weights: dict[str, Array]


def join(rounds: Rounds, comm: Communicator, local: Weights, new: bool = False) -> Joined:
    """Goes on with this group. Every rank of it calls it; `local` are this rank's weights as they are."""
    standings = _standings(rounds, comm, new)
    members = [standing for standing in standings if not standing.new] or standings
    latest = max(standing.meeting for standing in members)
    held, finite = rounds.prepared.visit if rounds.prepared is not None else None, True
    if held is not None and rounds.meeting < latest:
        rounds.counts.steps -= held.steps  # which waited for the next meeting
        finite = rounds.commit()
    else:
        held = None
        rounds.abandon()
    weights = _catch_up(rounds, comm, standings, latest, local)
    if not new:
        rounds.averager.states.multiply(comm.size / rounds.comm.size)
    rounds.averager.connect(comm)
    rounds.averager.forget_norms()
    return Joined(held, finite, weights)


def _standings(rounds: Rounds, comm: Communicator, new: bool) -> list[Standing]:
    mine = Standing(rounds.meeting, rounds.prepared is not None, new, _digest(rounds.common))
    heard = comm.all_gather(json.dumps(asdict(mine)).encode(), CHANNEL)
    return [Standing(**json.loads(bytes(message))) for message in heard]


def _digest(weights: Weights) -> int:
    digest = 0
    for array in weights.values():
        digest = zlib.crc32(array.data, digest)
    return digest


def _catch_up(
    rounds: Rounds, comm: Communicator, standings: list[Standing], latest: int, local: Weights
) -> dict[str, Array]:
    """The weights that this rank's model takes, if it was behind; the others are left as they are."""
    start = all(standing.new for standing in standings)
    behind = [standing.new if not start else standing.digest != standings[0].digest for standing in standings]
    behind = [late or standing.reached < latest for late, standing in zip(behind, standings, strict=True)]
    if not any(behind):
        return {}
    leader = behind.index(False)
    packed = comm.broadcast(_pack(rounds) if comm.rank == leader else None, leader)
    if not behind[comm.rank]:
        return {}
    fresh = standings[comm.rank].new
    change = {name: rounds.given(name) - local[name] for name in rounds.common if not fresh}
    try:
        _unpack(rounds, packed)
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"rank {leader}: its weights cannot be read: {error}") from error
    return {name: rounds.given(name) if fresh else rounds.given(name) - change[name] for name in rounds.common}


def _pack(rounds: Rounds) -> bytes:
    kept = {name: list(buffers) for name, buffers in rounds.outer.items()}
    head = {"meeting": rounds.meeting, "counts": asdict(rounds.counts), "outer": kept}
    arrays = [*rounds.common.values(), *(array for buffers in rounds.outer.values() for array in buffers.values())]
    return json.dumps(head).encode() + b"\n" + b"".join(array.tobytes() for array in arrays)


def _unpack(rounds: Rounds, packed: bytes) -> None:
    text, _, body = packed.partition(b"\n")
    head, start = json.loads(text), 0

    def take(like: Array) -> Array:
        nonlocal start
        start += like.nbytes
        return np.frombuffer(body[start - like.nbytes : start], like.dtype).copy()

    common = {name: take(array) for name, array in rounds.common.items()}
    outer = {name: {key: take(common[name]) for key in keys} for name, keys in head["outer"].items()}
    if start != len(body):
        raise ValueError(f"{len(body)} bytes where {start} are due")
    meeting, counts = int(head["meeting"]), Counts(**head["counts"])
    rounds.common, rounds.outer, rounds.counts = common, outer, counts
    rounds.meeting = rounds.averager.step = meeting
