"""Which entries of a pruned model's tensors take part in training, as the framework that pruned it tells."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsewire.kernels import Array, index_dtype

DIGEST = 8  # bytes


@dataclass(frozen=True, eq=False)
class Mask:
    """Ascending indices of the entries that survived, and their digest."""

    indices: Array
    digest: bytes

    @classmethod
    def of(cls, indices: Array) -> Mask:
        return cls(indices, digest(np.ascontiguousarray(indices, "<i8")))


def digest(*parts: Any) -> bytes:
    """A few bytes that tell whether ranks have the same."""
    hasher = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        hasher.update(part)
    return hasher.digest()


@dataclass(frozen=True, eq=False)
class FrameworkMask:
    """A parameter's mask in the framework: an object with the number of its version, and `read`, which gives it as a
    flat array, 0 where pruned."""

    source: object
    version: int
    read: Callable[[], Array]

    def is_same(self, other: FrameworkMask | None) -> bool:
        return other is not None and self.source is other.source and self.version == other.version


# Name, first place and last + 1 within what is compressed as one tensor, elements of the parameter that lie before it.
Member = tuple[str, int, int, int]
Members = Sequence[Member]


class Masks:
    """Masks by name, read again only when they change. A parameter that has none takes part as a whole."""

    def __init__(self, find: Callable[[str], FrameworkMask | None]) -> None:
        self._find = find
        self._known: dict[tuple[Member, ...], tuple[list[FrameworkMask | None], Mask]] = {}

    def of(self, members: Members) -> Mask:
        """Of the tensor that these parameters form; what lies between them takes no part."""
        key, sources = tuple(members), [self._find(name) for name, *_ in members]
        known = self._known.get(key)
        if known is None or not all(map(_is_same, sources, known[0])):
            parts = [_survivors(source, *place) for source, (_, *place) in zip(sources, members, strict=True)]
            known = sources, Mask.of(np.concatenate(parts).astype(index_dtype(members[-1][2])))
            self._known[key] = known
        return known[1]

    def digest(self, sizes: Mapping[str, int]) -> str:
        """Of the masks of these parameters, to compare ranks by."""
        return digest(*(self.of([(name, 0, size, 0)]).digest for name, size in sizes.items())).hex()


def _is_same(mask: FrameworkMask | None, other: FrameworkMask | None) -> bool:
    return mask is other if mask is None else mask.is_same(other)


def _survivors(mask: FrameworkMask | None, first: int, last: int, skipped: int) -> Array:
    if mask is None:
        return np.arange(first, last)
    return first + np.flatnonzero(mask.read()[skipped : skipped + last - first])
