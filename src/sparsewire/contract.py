"""What a codec is: the base class of every slot, and the facts that travel with a tensor.

A codec is a frozen dataclass: its fields are its settings, its `id` the name in schemes, its `wire_id` the number in
frames. It holds no state and knows no framework, no wire and (but for the wrappers `best` and `Chain`) no other codec.
"""

from __future__ import annotations

import functools
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from . import kernels
from .errors import SchemeError
from .kernels import Array
from .kernels.scratch import scratch

SLOTS = ("select", "transform", "indices", "values", "memory", "exchange")


@dataclass(frozen=True)
class Context:
    """What a codec may know besides its own settings: the tensor's facts, and where its randomness comes from.

    `key` is derived from (seed, step, name): the same on every rank. `own_key` is this rank's. `packed` is false
    where a byte codec follows that compresses whole bytes better than packed bits. `ordered` is true where entries
    travel in the order that the value codec asks for, not by ascending index. `finite` is false where a selected value
    is not: then an index codec must not leave any of the support out.
    """

    dtype: str
    numel: int
    count: int = 0
    key: int = 0
    own_key: int = 0
    packed: bool = True
    ordered: bool = False
    finite: bool = True


@functools.cache
def _hints(codec: type) -> dict[str, Any]:
    return typing.get_type_hints(codec)


def _coerce(value: Any, hint: Any) -> Any:
    """The value as its annotation wants it, or TypeError. An int passes for a float, never the other way round."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) in allowed or (value is None and type(None) in allowed):
        return value
    if float in allowed and type(value) is int:
        return float(value)
    raise TypeError(" or ".join("none" if t is type(None) else t.__name__ for t in allowed))


@dataclass(frozen=True)
class Codec(ABC):
    """Base of all codecs. A subclass is a frozen dataclass that sets `slot`, `id` and, if built in, `wire_id`."""

    slot: ClassVar[str]
    id: ClassVar[str]
    wire_id: ClassVar[int] = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            try:
                object.__setattr__(self, item.name, _coerce(value, _hints(type(self))[item.name]))
            except TypeError as error:
                raise SchemeError(f"{self.id}({item.name}=…) takes {error}, not {value!r}") from None
        self.check()

    def check(self) -> None:
        """Raises `SchemeError` if a setting is out of range."""

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise SchemeError(f"{self}: {what}")

    @property
    def config(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, **self.config}

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={text(value)}" for name, value in self.config.items() if value is not None)
        return f"{self.id}({settings})" if settings else self.id


def text(value: Any) -> str:
    """A setting's value as schemes write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Select(Codec):
    """Dense → support."""

    slot = "select"

    @abstractmethod
    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """(ascending indices, values there) of a flat float32 or float64 array."""

    def pick_compensated(self, residual: Array, x: Array, ctx: Context) -> tuple[Array, Array]:
        """`pick` of residual + x, which goes into the residual, except where it is not finite: there the old one stays.

        One pass where a kernel offers it.
        """
        picked = self.pick_sum(residual, x, ctx)
        kernels.add_finite(residual, x)
        return picked

    def pick_sum(self, residual: Array, x: Array, ctx: Context) -> tuple[Array, Array]:
        """`pick` of residual + x, which both stay as they are."""
        return self.pick(np.add(residual, x, out=scratch(x.size, x.dtype)), ctx)


class Transform(Codec):
    """Dense → dense, before selection; undone after decoding."""

    slot = "transform"


class IndexCodec(Codec):
    """Support ⇄ bytes. One that `carries_order` can send indices in any order, when told that they are ordered."""

    slot = "indices"
    carries_order: ClassVar[bool] = False

    @property
    def keeps_values(self) -> bool:
        """Whether the values of the support are sent in their order, wherever the receiver will see them."""
        return False

    @abstractmethod
    def encode(self, indices: Array, ctx: Context) -> tuple[bytes, Array]:
        """(section, the indices that the receiver will see)."""

    @abstractmethod
    def decode(self, body: memoryview, ctx: Context) -> Array:
        """`ctx.count` indices. A section that no encoder writes raises `ValueError`."""

    def estimate(self, indices: Array, ctx: Context) -> int:
        """About how many bytes `encode` would give, found cheaply."""
        return len(self.encode(indices, ctx)[0])

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        """Bytes of each stream within the section, for `inspect`; empty where there is one only."""
        return {}


class ValueCodec(Codec):
    """Numbers ⇄ bytes. One that `reorders` sends them in its own `order`, with a map unless entries are ordered."""

    slot = "values"
    reorders: ClassVar[bool] = False

    @abstractmethod
    def encode(self, values: Array, ctx: Context) -> tuple[bytes, Array]:
        """(section, the values that the receiver will see), values in float32 or float64."""

    @abstractmethod
    def decode(self, body: memoryview, ctx: Context) -> Array:
        """`ctx.count` numbers in the work dtype. A section that no encoder writes raises `ValueError`."""

    @abstractmethod
    def size_limit(self, ctx: Context) -> int:
        """The most bytes a section of `ctx.count` values can have."""

    def item_size(self, ctx: Context) -> int:
        """Bytes of the items that the section mostly consists of: what a byte codec shuffles by."""
        return 1

    def order(self, values: Array) -> Array:
        """Positions in the order that `encode` expects where entries are ordered."""
        return np.arange(values.size)

    def parts(self, body: memoryview, ctx: Context) -> Mapping[str, int]:
        return {}

    def notes(self, body: memoryview, ctx: Context) -> Mapping[str, float]:
        """Facts about the section that are no sizes, for `inspect`."""
        return {}


class ByteCodec(Codec):
    """Bytes ⇄ fewer bytes; a later stage of the values slot."""

    slot = "values"

    @abstractmethod
    def compress(self, data: bytes, item_size: int) -> bytes: ...

    @abstractmethod
    def decompress(self, data: memoryview, item_size: int, limit: int) -> bytes:
        """Raises `ValueError` rather than give more than `limit` bytes."""


class Memory(Codec):
    """What a rank does with what it did not send."""

    slot = "memory"
    keeps: ClassVar[bool]


class Exchange(Codec):
    """How the ranks come to the mean."""

    slot = "exchange"

    @abstractmethod
    def exchange(self, pieces: Any, plan: Any, comm: Any, step: int, seed: int, clock: Any) -> Any:
        """`exchange.Piece`s in, an `exchange.Outcome` for each; the same on every rank."""
