"""Which entries of a pruned model's tensors take part in training, as the framework that pruned it tells."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from .kernels import Array, index_dtype

DIGEST = 8  # bytes


@dataclass(frozen=True, eq=False)
class Mask:
    """Ascending indices of the entries that survived, and their digest."""

    indices: Array
    digest: bytes

    @classmethod
    def of(cls, indices: Array) -> Mask:
        return cls(indices, digest(np.ascontiguousarray(indices, "<i8")))


def digest(*parts: bytes | Array) -> bytes:
    """A few bytes that tell whether ranks have the same."""
    found = hashlib.blake2b(digest_size=DIGEST)
    for part in parts:
        found.update(part)
    return found.digest()


@dataclass(frozen=True)
class Found:
    """A parameter's mask in the framework: `version` changes with it, `read` gives it as a flat array, 0 is pruned."""

    version: Hashable
    read: Callable[[], Array]


Members = Sequence[tuple[str, int, int]]  # name, first place and last + 1 within what is compressed as one tensor


class Masks:
    """Masks by name, read again only when they change. A parameter that has none takes part as a whole."""

    def __init__(self, find: Callable[[str], Found | None]) -> None:
        self._find = find
        self._known: dict[str, tuple[Hashable, Mask]] = {}

    def of(self, name: str, members: Members) -> Mask:
        """Of the tensor that these parameters form; what lies between them takes no part."""
        found = [self._find(member) for member, _, _ in members]
        version = (tuple(members), tuple(one and one.version for one in found))
        if name not in self._known or self._known[name][0] != version:
            parts = [_survivors(one, first, last) for one, (_, first, last) in zip(found, members, strict=True)]
            indices = np.concatenate(parts).astype(index_dtype(members[-1][2]))
            self._known[name] = version, Mask.of(indices)
        return self._known[name][1]


def _survivors(found: Found | None, first: int, last: int) -> Array:
    return np.arange(first, last) if found is None else first + np.flatnonzero(found.read())
