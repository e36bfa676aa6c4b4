"""What a codec is: the base class of every slot, and the facts that travel with a tensor.

A codec is a frozen dataclass: its fields are its settings, its `id` the name in schemes, its `wire_id` the number in
frames. It holds no state and knows no framework, no wire and (but for the wrappers `best` and `Chain`) no other codec.
"""

from __future__ import annotations

import functools
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from . import kernels
from .errors import SchemeError
from .kernels import Array
from .kernels.scratch import scratch

SLOTS = ("select", "transform", "indices", "values", "memory", "exchange")


@dataclass(frozen=True)
class Context:
    """What a codec may know besides its own settings: the tensor's facts, and where its randomness comes from.

    `numel` is the number of entries that the tensor could have. `count` is how many an index codec sends, and how many
    numbers a value codec does: `width` of them for each entry.

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
    """Dense array → support."""

    slot = "select"

    @abstractmethod
    def pick(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """(ascending indices, values there) of a flat float32 or float64 array, which stays as it is.

        Non-finite entries are never left out. The result may share memory with x: `choose` copies it then.
        """

    def pick_sum(self, residual: Array, x: Array, ctx: Context) -> tuple[Array, Array]:
        """`pick` of residual + x, which both stay as they are; one pass where a kernel offers it."""
        with np.errstate(all="ignore"):
            return self.choose(np.add(residual, x, out=scratch(x.size, x.dtype)), ctx)

    def choose(self, x: Array, ctx: Context) -> tuple[Array, Array]:
        """`pick` in memory of its own: x is written to while the selection is still needed."""
        indices, values = (
            part.copy() if np.may_share_memory(part, x) else part for part in self.pick(x, ctx)
        )  # fmt: skip
        return indices, values


class Transform(Codec):
    """A linear orthonormal map of the flat gradient, before selection; undone once, after the ranks' sums.

    An entry of the result is `width` numbers with one index; entries are selected by their norm.
    """

    slot = "transform"
    is_identity: ClassVar[bool] = False

    @property
    def width(self) -> int:
        """Numbers per entry."""
        return 1

    @abstractmethod
    def size(self, numel: int) -> int:
        """Entries that a tensor of `numel` elements has; grows with numel, and is bounded by what numel promises."""

    @abstractmethod
    def forward(self, x: Array) -> Array:
        """`size(x.size) * width` coefficients of a flat array, in its dtype; x stays as it is."""

    @abstractmethod
    def inverse(self, coefficients: Array, numel: int) -> Array:
        """The flat array of `numel` elements; the same bits for the same coefficients."""

    def norms(self, coefficients: Array) -> Array:
        """What the selection compares: each entry's magnitude."""
        return coefficients if self.width == 1 else kernels.row_norms(coefficients, self.width)


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


State = MutableMapping[str, Any]  # a tensor's buffers by name: flat arrays in the work dtype


class Feedback(Protocol):
    """What a memory is told after a finite step, element by element of the arrays that it is given."""

    @property
    def sent_at(self) -> Array | None:
        """Ascending places of what this rank sent; None where a transform spreads it over all elements."""

    def take_sent(self, array: Array) -> None:
        """array −= this rank's part in the mean."""

    def add_mean(self, array: Array, factor: float) -> None:
        """array += factor × the mean over the ranks."""


class Memory(Codec):
    """What a rank does with what it did not send. Stateless: buffers live with the caller, zero at first.

    Every method works element by element, so that a sparse gradient is served by the buffers' parts at its entries.
    Buffers are linear in the gradient: the loss scale, saving and another number of ranks are one rule for all of them.
    """

    slot = "memory"
    buffers: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def total(self, state: State, x: Array) -> Array:
        """The compensated gradient, which the selection sees. Reads only, and returns an array of its own or x."""

    def pick(self, select: Select, state: State, x: Array, ctx: Context) -> tuple[Array, Array]:
        """The selection from `total`; in one pass where that is possible."""
        return select.choose(self.total(state, x), ctx)

    @abstractmethod
    def keep(self, state: State, x: Array, feedback: Feedback) -> None:
        """Updates the buffers in place, after a step that is finite on all ranks: total = sent + what is kept."""

    def keep_dense(self, state: State, x: Array) -> None:
        """The same after a step in which all of `total` was sent."""
        for buffer in self.buffers:
            state[buffer][:] = 0


class Exchange(Codec):
    """How the ranks come to the mean."""

    slot = "exchange"

    @abstractmethod
    def exchange(self, pieces: Any, turn: Any) -> Any:
        """`exchange.Piece`s in, an `exchange.Outcome` for each; every rank calls it with the same pieces in one order.

        A rank that cannot take part tells the others before it raises.
        """

    def refuse(self, comm: Any, channel: str) -> None:
        """Tells ranks that are in `exchange` that this one cannot take part."""
        comm.all_gather(b"", channel)
