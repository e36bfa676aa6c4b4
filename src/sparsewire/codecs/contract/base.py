"""What every codec is, and the facts that travel with a tensor.

A codec is a frozen dataclass: its fields are its settings, its `id` the name in schemes, its `wire_id` the number in
frames. It holds no state and knows no framework, no wire and (but for the wrappers `best` and `Chain`) no other codec.
"""

from __future__ import annotations

import functools
import types
import typing
from abc import ABC
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sparsewire.errors import SchemeError

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

    @property
    def brief(self) -> str:
        """The same without settings that have their default."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        shown = (f"{item.name}={text(kept[item.name])}" for item in fields(self) if kept[item.name] != item.default)
        settings = ", ".join(shown)
        return f"{self.id}({settings})" if settings else self.id


def text(value: Any) -> str:
    """A setting's value as schemes write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
