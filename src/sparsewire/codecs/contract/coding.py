"""Support and numbers ⇄ bytes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from sparsewire.kernels import Array

from .base import Codec, Context


class IndexCodec(Codec):
    """Support ⇄ bytes. One that `carries_order` can send indices in any order, when told that they are ordered."""

    slot = "indices"
    carries_order: ClassVar[bool] = False
    lossless: ClassVar[bool] = True  # whether receivers see the support itself

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
