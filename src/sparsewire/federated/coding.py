"""Changes of a model ⇄ frames, with error feedback: by clients on the way up, by the server on the way down."""

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

from .model import Model, TensorInfo, framed

EVERY_NUMBER = scheme("topk(100%) | indices=best | values=raw | memory=none")  # every number, for the model itself
UNCOMPRESSED = scheme("nonzero | indices=best | values=raw | memory=none")  # for tensors that are not compressed
MEMORIES = ("none", "residual")


@dataclass(frozen=True)
class Sending:
    """A compressed change: its frames, the entries that they hold, and the pieces whose memories keep the rest."""

    body: bytes
    sent: list[Sparse]
    finite: bool
    pieces: Sequence[tuple[Piece, Scheme]]

    def keep(self) -> None:
        """Writes what was not sent into the memories."""
        for (piece, plan), sent in zip(self.pieces, self.sent, strict=True):
            piece.keep(plan, Alone(sent))


@dataclass(frozen=True)
class Coder:
    """The scheme of one direction, and the seed and rank that its random numbers come from."""

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

    def buffers_of(self, info: TensorInfo) -> tuple[str, ...]:
        """Names of the buffers that the memory keeps for a tensor."""
        return self.scheme_of(info).memory.buffers

    def scheme_of(self, info: TensorInfo) -> Scheme:
        return UNCOMPRESSED if info.dense else self.scheme

    def check(self, tensors: Sequence[TensorInfo]) -> None:
        """A `FrameError` where the scheme does not go with a tensor: both may come from a stranger."""
        for info in tensors:
            try:
                self.domain_size(info)
            except Exception as error:
                raise HeaderError(f"{self.scheme} does not go with {info.name!r}: {error}") from error

    def domain_size(self, info: TensorInfo) -> int:
        """How many numbers a tensor has in the domain in which it is sent."""
        transform = self.scheme_of(info).transform.fitted(self.shape_of(info))
        return info.size if transform.is_identity else transform.size(info.size) * transform.width

    def shape_of(self, info: TensorInfo) -> tuple[int, ...]:
        return self.scheme_of(info).framed_shape(info.shape)

    def seal(
        self, tensors: Sequence[TensorInfo], changes: Mapping[str, Array], states: dict[str, State], step: int
    ) -> Sending:
        """Compresses the changes. Missing buffers are made, as zeros; only `Sending.keep` writes to buffers."""
        pieces = [(self._piece(info, changes[info.name], states), self.scheme_of(info)) for info in tensors]
        sealed = [piece.seal(plan, step, self.seed, self.rank) for piece, plan in pieces]
        sent = [frame.sent for frame in sealed]
        finite = not any(piece.is_nonfinite(plan, part) for (piece, plan), part in zip(pieces, sent, strict=True))
        return Sending(pack_sealed(sealed), sent, finite, pieces)

    def _piece(self, info: TensorInfo, change: Array, states: dict[str, State]) -> Piece:
        buffers = self.buffers_of(info)
        if buffers and info.name not in states:
            states[info.name] = {name: np.zeros(info.size, work_dtype(info.dtype)) for name in buffers}
        return Piece(info.name, change, self.shape_of(info), info.dtype, states.get(info.name, {}))

    def open(self, body: Data, tensors: Sequence[TensorInfo]) -> list[Sparse]:
        """The entries that frames of this scheme hold, a frame for each tensor; anything else is a `FrameError`."""
        wanted = [(self.shape_of(info), self.scheme_of(info)) for info in tensors]
        return open_frames(body, tensors, wanted)


def pack_sealed(sealed: Sequence[Sealed]) -> bytes:
    return pack_message([frame.fields for frame in sealed])


def open_frames(
    body: Data, tensors: Sequence[TensorInfo], wanted: Sequence[tuple[tuple[int, ...], Scheme]]
) -> list[Sparse]:
    frames = unpack_message(body, max((info.size for info in tensors), default=0))
    if len(frames) != len(tensors):
        raise HeaderError(f"{len(frames)} tensors where the model has {len(tensors)}")
    for frame, info, (shape, plan) in zip(frames, tensors, wanted, strict=True):
        _check(frame, info, shape, plan)
    return [decode_parsed(frame) for frame in frames]


def _check(frame: Frame, info: TensorInfo, shape: tuple[int, ...], plan: Scheme) -> None:
    if frame.shape != shape or frame.dtype != info.dtype:
        raise HeaderError(f"a frame of {frame.dtype} {frame.shape} where {info.name!r} is {info.dtype} {info.shape}")
    if frame.record != plan.record:
        raise HeaderError(f"{info.name!r} is coded by another scheme than {plan}")


# --- weights as they are ---------------------------------------------------------------------------------------------


def pack_weights(model: Model) -> bytes:
    pieces = [Piece(info.name, model.flat[info.name], (info.size,), info.dtype) for info in model.tensors]
    return pack_sealed([piece.seal(EVERY_NUMBER, 0, 0, 0) for piece in pieces])


def open_weights(body: Data, tensors: Sequence[TensorInfo]) -> Model:
    ordered = framed(tensors)
    parts = open_patch(body, ordered)
    for part, info in zip(parts, ordered, strict=True):
        if part.count != info.size:
            raise HeaderError(f"{part.count} of {info.size} weights of {info.name!r}")
    return Model(tensors, {info.name: part.flat() for part, info in zip(parts, ordered, strict=True)})


def pack_patch(model: Model, supports: Sequence[Array]) -> bytes:
    """The weights at these elements of each tensor."""
    parts = [
        Sparse(where, model.flat[info.name][where], (info.size,), info.dtype)
        for info, where in zip(model.tensors, supports, strict=True)
    ]
    pieces = [Piece(info.name, part, part.shape, info.dtype) for info, part in zip(model.tensors, parts, strict=True)]
    return pack_sealed([piece.seal(EVERY_NUMBER, 0, 0, 0) for piece in pieces])


def open_patch(body: Data, tensors: Sequence[TensorInfo]) -> list[Sparse]:
    return open_frames(body, tensors, [((info.size,), EVERY_NUMBER) for info in tensors])
