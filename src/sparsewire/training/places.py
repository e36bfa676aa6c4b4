"""Arrays of a training wherever they lie: on the host, or on the device where the gradients are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.exchange.dense import BLOCK
from sparsewire.kernels.device import Dense
from sparsewire.kernels.scratch import recycled


def same_memory(first: Dense, second: Dense) -> bool:
    """Whether two arrays have a work dtype in common and lie on the same side."""
    return first.dtype == second.dtype and kernels.on_host(first) == kernels.on_host(second)


def zeros_like(like: Dense, size: int) -> Dense:
    """So many zeros in the work dtype, where another array lies."""
    if kernels.on_host(like):
        return np.zeros(size, like.dtype)
    return like.zeros_beside(size)


def unfilled(like: Dense) -> Dense:
    """As large as another array, in its work dtype, with any numbers."""
    if kernels.on_host(like):
        return recycled(like.size, like.dtype)
    return like.empty()


def is_narrow(array: Dense) -> bool:
    """Whether an array is stored in less than its work dtype, as a device's may be."""
    return not kernels.on_host(array) and bool(array.is_narrow)


def assign(out: Dense, array: Dense) -> None:
    """out[:] = array, from any side."""
    out[:] = array.host() if kernels.on_host(out) and not kernels.on_host(array) else array


def widened(array: Dense) -> Dense:
    """A copy of a device's array in the work dtype."""
    return array.widened()


def multiply_wide(array: Dense, factor: float) -> None:
    """Multiplies a device's array in place, by a factor that float32 may not hold."""
    array.multiply_wide(factor)


def own_copy(array: Dense) -> Dense:
    """A copy in the work dtype."""
    return array.copy() if kernels.on_host(array) else array.widened()


def begin_alike(first: Dense, second: Dense) -> bool:
    """Whether two arrays are the same memory."""
    if kernels.on_host(first):
        return bool(np.may_share_memory(first, second))
    return bool(first.overlaps(second))


def in_cache(array: Dense) -> Iterator[slice]:
    """Stretches of a host's array that a core's cache holds, beside those of a few others, while several passes go over
    them; a device's array is one stretch."""
    size = BLOCK if kernels.on_host(array) else max(1, array.size)
    return (slice(start, start + size) for start in range(0, array.size, size))


def together(arrays: Sequence[Dense]) -> Any:
    """Arrays of a device side by side, on their way to the host; None where there are none of a device."""
    return arrays[0].together(arrays) if arrays and not kernels.on_host(arrays[0]) else None


def is_used(x: Dense) -> bool:
    """Whether anything of an array is not zero. On a device the host waits for it."""
    return bool(kernels.of(x).has_gradient(x))


def change_if_used(x: Dense, change: Callable[[Dense], None]) -> None:
    """Changes an array in which anything is not zero; on a device nobody waits to know."""
    if not kernels.on_host(x):
        x.change_if_used(change)
    elif is_used(x):
        change(x)


class Unused(Container[str]):
    """The names of parameters without a gradient in a buffer on a device, known when they are first asked for.

    With `sampled` a few numbers of each are looked at first, and all of them only where these are zero: the buffer must
    be as it was when that is asked for.
    """

    def __init__(self, spans: Sequence[tuple[str, Dense]], sampled: bool) -> None:
        self._spans, self._sampled = spans, sampled
        self._waiting = _flags(spans, sampled)
        self._names: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    @property
    def names(self) -> frozenset[str]:
        if self._names is None:
            names = _zero(self._spans, self._waiting)
            if names and self._sampled:
                spans = [span for span in self._spans if span[0] in names]
                names = _zero(spans, _flags(spans, sampled=False))
            self._names, self._spans = names, ()
        return self._names


def _flags(spans: Sequence[tuple[str, Dense]], sampled: bool) -> Any:
    return spans[0][1].used_flags([x for _, x in spans], sampled) if spans else None


def _zero(spans: Sequence[tuple[str, Dense]], waiting: Any) -> frozenset[str]:
    flags = waiting.read()[0] if spans else ()
    return frozenset(name for (name, _), used in zip(spans, flags, strict=True) if not used)
