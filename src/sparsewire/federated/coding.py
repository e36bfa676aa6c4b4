"""Changes of a model ⇄ frames, with error feedback: what clients do on the way up and the server on the way down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsewire.codecs.contract import State
from sparsewire.codecs.scheme import Scheme, Spec, scheme
from sparsewire.core.sparse import Sparse, work_dtype
from sparsewire.errors import HeaderError, SchemeError
from sparsewire.frames.codec import decode_parsed
from sparsewire.frames.compression import Alone
from sparsewire.frames.piece import Piece
from sparsewire.frames.seal import Sealed
from sparsewire.frames.wire import Data, Frame, pack_message, unpack_message
from sparsewire.kernels import Array

from .model import Model, Tensor, framed

WHOLE = scheme("topk(100%) | indices=best | values=raw | memory=none")  # every number, for the model itself
PLAIN = scheme("nonzero | indices=best | values=raw | memory=none")  # for tensors that are not compressed
MEMORIES = ("none", "residual")


@dataclass(frozen=True)
class Sending:
    """A change on its way: frames, what they say, and the memories' buffers as they will be when it has been sent."""

    body: bytes
    sent: list[Sparse]
    finite: bool
    pieces: Sequence[tuple[Piece, Scheme]]

    def keep(self) -> None:
        """Lets the memories keep what was not sent."""
        for (piece, plan), sent in zip(self.pieces, self.sent, strict=True):
            piece.keep(plan, Alone(sent))


@dataclass(frozen=True)
class Coder:
    """One direction's scheme, and where its randomness comes from."""

    scheme: Scheme
    seed: int
    rank: int = 0

    @classmethod
    def of(cls, spec: Spec, seed: int, rank: int = 0) -> Coder:
        plan = scheme(spec)
        if plan.memory.id not in MEMORIES:
            raise SchemeError(
                f"memory={plan.memory} does not go with federated rounds: use memory=residual or none, and a momentum "
                "in the server's optimizer"
            )
        return cls(plan, seed, rank)

    def buffers_of(self, one: Tensor) -> tuple[str, ...]:
        """Names of what the memory keeps of a tensor."""
        return self.scheme_of(one).memory.buffers

    def scheme_of(self, one: Tensor) -> Scheme:
        return PLAIN if one.plain else self.scheme

    def check(self, tensors: Sequence[Tensor]) -> None:
        """A `FrameError` where the scheme does not go with a tensor: both may come from a stranger."""
        for one in tensors:
            try:
                self.domain_size(one)
            except Exception as error:
                raise HeaderError(f"{self.scheme} does not go with {one.name!r}: {error}") from error

    def domain_size(self, one: Tensor) -> int:
        """Numbers that there are of a tensor in the domain in which it is sent."""
        transform = self.scheme_of(one).transform.fitted(self.shape_of(one))
        return one.size if transform.is_identity else transform.size(one.size) * transform.width

    def shape_of(self, one: Tensor) -> tuple[int, ...]:
        return self.scheme_of(one).framed_shape(one.shape)

    def seal(
        self, tensors: Sequence[Tensor], changes: Mapping[str, Array], states: dict[str, State], step: int
    ) -> Sending:
        """Nothing is written but buffers that are not there yet, as zeros; `keep` writes."""
        pieces = [(self._piece(one, changes[one.name], states), self.scheme_of(one)) for one in tensors]
        sealed = [piece.seal(plan, step, self.seed, self.rank) for piece, plan in pieces]
        sent = [one.sent for one in sealed]
        spoiled = any(piece.is_nonfinite(plan, one) for (piece, plan), one in zip(pieces, sent, strict=True))
        return Sending(pack_sealed(sealed), sent, not spoiled, pieces)

    def _piece(self, one: Tensor, change: Array, states: dict[str, State]) -> Piece:
        buffers = self.buffers_of(one)
        if buffers and one.name not in states:
            states[one.name] = {name: np.zeros(one.size, work_dtype(one.dtype)) for name in buffers}
        return Piece(one.name, change, self.shape_of(one), one.dtype, states.get(one.name, {}))

    def open(self, body: Data, tensors: Sequence[Tensor]) -> list[Sparse]:
        """What frames of this scheme say, one for each tensor; anything else is a `FrameError`."""
        wanted = [(self.shape_of(one), self.scheme_of(one)) for one in tensors]
        return open_frames(body, tensors, wanted)


def pack_sealed(sealed: Sequence[Sealed]) -> bytes:
    return pack_message([one.fields for one in sealed])


def open_frames(
    body: Data, tensors: Sequence[Tensor], wanted: Sequence[tuple[tuple[int, ...], Scheme]]
) -> list[Sparse]:
    frames = unpack_message(body, max((one.size for one in tensors), default=0))
    if len(frames) != len(tensors):
        raise HeaderError(f"{len(frames)} tensors where the model has {len(tensors)}")
    for frame, one, (shape, plan) in zip(frames, tensors, wanted, strict=True):
        _check(frame, one, shape, plan)
    return [decode_parsed(frame) for frame in frames]


def _check(frame: Frame, one: Tensor, shape: tuple[int, ...], plan: Scheme) -> None:
    if frame.shape != shape or frame.dtype != one.dtype:
        raise HeaderError(f"a frame of {frame.dtype} {frame.shape} where {one.name!r} is {one.dtype} {one.shape}")
    if frame.record != plan.record:
        raise HeaderError(f"{one.name!r} is coded by another scheme than {plan}")


# --- weights as they are ---------------------------------------------------------------------------------------------


def pack_weights(model: Model) -> bytes:
    pieces = [Piece(one.name, model.flat[one.name], (one.size,), one.dtype) for one in model.tensors]
    return pack_sealed([piece.seal(WHOLE, 0, 0, 0) for piece in pieces])


def open_weights(body: Data, tensors: Sequence[Tensor]) -> Model:
    ordered = framed(tensors)
    parts = open_patch(body, ordered)
    for part, one in zip(parts, ordered, strict=True):
        if part.count != one.size:
            raise HeaderError(f"{part.count} of {one.size} weights of {one.name!r}")
    return Model(tensors, {one.name: part.flat() for part, one in zip(parts, ordered, strict=True)})


def pack_patch(model: Model, supports: Sequence[Array]) -> bytes:
    """The weights at these elements of each tensor."""
    parts = [
        Sparse(where, model.flat[one.name][where], (one.size,), one.dtype)
        for one, where in zip(model.tensors, supports, strict=True)
    ]
    pieces = [Piece(one.name, part, part.shape, one.dtype) for one, part in zip(model.tensors, parts, strict=True)]
    return pack_sealed([piece.seal(WHOLE, 0, 0, 0) for piece in pieces])


def open_patch(body: Data, tensors: Sequence[Tensor]) -> list[Sparse]:
    return open_frames(body, tensors, [((one.size,), WHOLE) for one in tensors])
