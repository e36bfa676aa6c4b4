"""The layout of a bucket says which of its parameters travel compressed, and which dense.

A bucket is a flat buffer of gradients. Parameters that are compressed form segments (one each, or as many as lie side
by side); the others, too small or excluded, travel dense. Small ones that lie between compressed ones do not cut a
segment: they are taken out and leave zeros behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.core.sparse import Sparse, work_dtype
from sparsewire.errors import InputError
from sparsewire.exchange import Outcome, Piece
from sparsewire.kernels import Array

from .places import Unused, is_narrow, is_used, multiply_wide, widened


@dataclass(frozen=True)
class Slice:
    """A parameter's place in its bucket, or that of a part of one: of `part_of` elements, after the first `skipped`."""

    name: str
    start: int
    stop: int
    part_of: int | None = None
    skipped: int = 0

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def whole(self) -> int:
        """Elements of the parameter."""
        return self.size if self.part_of is None else self.part_of


@dataclass(frozen=True)
class Buffer:
    """Gradients side by side: `take` gives them flat in the work dtype, `write` takes the means.

    A buffer in another dtype is converted at each `take`, so that no copy of it is held from `put` to `finish`.
    """

    slices: tuple[Slice, ...]
    dtype: str
    take: Callable[[], Array]
    write: Callable[[Array], None] = lambda mean: None
    copies: bool = False  # whether `take` gives a copy each time

    @classmethod
    def of(cls, name: str, x: Array, dtype: str) -> Buffer:
        """One tensor, whose mean is written where it is."""
        if x.ndim != 1 or x.dtype != work_dtype(dtype) or not x.flags.writeable:
            raise InputError(f"{name!r}: a flat writable array of {work_dtype(dtype)} is needed for a {dtype} gradient")
        return cls((Slice(name, 0, x.size),), dtype, lambda: x)

    @property
    def size(self) -> int:
        return sum(item.size for item in self.slices)

    def scaled(self, factor: float) -> Buffer:
        """The same with its numbers multiplied."""
        wide = np.float64(factor)  # float32 may not hold it
        return self.changed(lambda numbers: _multiply(numbers, wide))

    def changed(self, change: Callable[[Array], Any]) -> Buffer:
        """The same with its numbers changed in place: at once, or at each `take` that gives a copy."""
        if self.copies:

            def take() -> Array:
                numbers = self.take()
                change(numbers)
                return numbers

            return replace(self, take=take)
        numbers = self.read()
        if is_narrow(numbers):
            return self.widened().changed(change)
        change(numbers)
        return self

    def widened(self) -> Buffer:
        """The same, which gives its numbers in the work dtype, as a copy; the means go where the numbers were."""
        take, stored = self.take, self.take()

        def write(mean: Array) -> None:
            stored[:] = mean
            self.write(stored)

        return replace(self, take=lambda: widened(take()), write=write, copies=True)

    def read(self) -> Array:
        """The numbers, if there are as many as the parameters have."""
        numbers = self.take()
        if numbers.size != self.size:
            raise InputError(f"a buffer of {numbers.size} numbers for parameters of {self.size} elements")
        return numbers


@dataclass(frozen=True)
class Segment:
    """A stretch of a bucket that is compressed as one tensor."""

    members: tuple[Slice, ...]

    @property
    def name(self) -> str:
        first, last = self.members[0].name, self.members[-1].name
        return first if first == last else f"{first}…{last}"

    @property
    def start(self) -> int:
        return self.members[0].start

    @property
    def stop(self) -> int:
        return self.members[-1].stop

    @property
    def spans(self) -> list[tuple[str, int, int, int]]:
        """Name, first place and last + 1 of each parameter within the segment; the elements before its part."""
        return [(item.name, item.start - self.start, item.stop - self.start, item.skipped) for item in self.members]


@dataclass(frozen=True)
class Layout:
    """A bucket's segments and dense slices; the same on every rank, as DDP's buckets are."""

    segments: tuple[Segment, ...]
    dense: tuple[Slice, ...]

    def clear(self, numbers: Array) -> None:
        """What travels dense leaves zeros behind where it lies between compressed parameters."""
        for item in self.dense if self.segments else ():
            numbers[item.start : item.stop] = 0


@dataclass
class PendingBuffer:
    """A buffer whose means are not yet written, and its pieces, which are compressed.

    `dense` are the parameters that travel dense: their means if they are `reduced` already, or what is to be. `unused`
    are those of them without a gradient here: the buffer may be written to before the step ends, so it cannot be asked.
    """

    buffer: Buffer
    layout: Layout
    pieces: list[Piece]
    dense: list[tuple[Slice, Array]]
    unused: Container[str]
    reduced: bool = False
    finite: bool = True
    in_place: bool = False  # whether the means are in the buffer already, and nothing reads its gradient any more
    outcomes: list[Outcome] = field(default_factory=list)
    landing: Any = None  # the dense numbers of a device, on their way to the host
    idle: Container[str] = ()  # compressed parameters without a gradient here, until their buffers are held back

    def land(self) -> None:
        """What travels dense comes to the host, where the ranks' engine takes it."""
        if self.landing is not None:
            numbers, at = self.landing.read()[0], 0
            self.dense = [(item, numbers[at : (at := at + item.size)]) for item, _ in self.dense]

    def release(self) -> None:
        """Lets go of gradients that were converted: they are converted again when they are needed."""
        if self.buffer.copies:
            self.pieces = [replace(piece, x=np.empty(0, np.float32)) for piece in self.pieces]

    def residuals(self) -> Iterator[tuple[Array, Array]]:
        """What waits of each compressed segment, and its gradient."""
        if not self.pieces:
            return
        numbers = self.buffer.read()
        if self.buffer.copies:
            self.layout.clear(numbers)
        for piece in self.pieces_over(numbers):
            if "residual" in piece.state and not isinstance(piece.x, Sparse):
                yield piece.state["residual"], piece.x

    def pieces_over(self, numbers: Array) -> list[Piece]:
        """The pieces, whose gradients lie in `numbers`."""
        spans = [numbers[segment.start : segment.stop] for segment in self.layout.segments]
        return [replace(piece, x=x) for piece, x in zip(self.pieces, spans, strict=True)]


@dataclass(frozen=True)
class PendingSparse:
    """A sparse gradient whose mean is not yet given out: this rank's piece of it, and the whole as it was given."""

    piece: Piece
    outcome: Outcome
    given: Sparse

    def copied(self) -> PendingSparse:
        """The same with a gradient of its own."""
        x = self.piece.x
        assert isinstance(x, Sparse)
        own = Sparse.trusted(x.indices.copy(), x.values.copy(), x.shape, x.dtype, x.width, x.transform)
        return replace(self, piece=replace(self.piece, x=own))


def lay_out(slices: Sequence[Slice], dense_names: frozenset[str], dense_below: int, by_bucket: bool) -> Layout:
    """`dense_names` are excluded; what has fewer than `dense_below` elements is dense as well."""
    dense = [item for item in slices if item.name in dense_names or item.whole < dense_below]
    if not by_bucket:
        return Layout(tuple(Segment((item,)) for item in slices if item not in dense), tuple(dense))
    runs: list[list[Slice]] = [[]]
    for item in slices:
        if item.name in dense_names and item.whole >= dense_below:
            runs.append([])
        else:
            runs[-1].append(item)
    members = [tuple(item for item in run if item not in dense) for run in runs]
    return Layout(tuple(Segment(run) for run in members if run), tuple(dense))


def has_gradient(x: Array) -> bool:
    """Whether anything of a parameter's gradient is not zero: DDP leaves zeros for a parameter that was not used."""
    return is_used(x)


def without_gradient(items: Sequence[Slice], numbers: Array, sampled: bool = False) -> Container[str]:
    """The names of parameters whose gradient is zero throughout."""
    spans = [(item.name, numbers[item.start : item.stop]) for item in items]
    if not kernels.on_host(numbers):
        return Unused(spans, sampled)
    return frozenset(name for name, x in spans if not has_gradient(x))


def names_of(items: Sequence[Slice]) -> list[str]:
    return [item.name for item in items]


Gradients = Sequence[Buffer] | tuple[str, Sparse]  # dense ones that travel as one message, or a sparse one


def clipped(parts: Sequence[Gradients], most: float, whole: Callable[[float], float] | None = None) -> list[Gradients]:
    """Gradients, dense and sparse, whose norm together is at most `most`; they stay as they are if they are not finite.

    The norm is largest · rest, of which neither overflows, as the norm itself may. `whole` makes the norm of a gradient
    from that of this rank's shard of it, and is called whatever that is.
    """
    magnitudes = [kernels.of(array).largest(array) for array in _arrays(parts)]  # a device is waited for once
    largest = max(map(float, magnitudes), default=0.0)
    if whole is not None:
        norm = whole(math.sqrt(_energy(parts)) if largest < math.inf else math.inf)
        return [_scaled(part, most / norm) for part in parts] if most < norm < math.inf else list(parts)
    if not 0 < largest < math.inf:
        return list(parts)
    rest = math.sqrt(_energy(parts, largest))
    return [_scaled(part, most / largest / rest) for part in parts] if most / largest < rest else list(parts)


def _energy(parts: Sequence[Gradients], unit: float = 1.0) -> float:
    energies = [kernels.of(array).energy(array, unit) for array in _arrays(parts)]
    return math.fsum(energy.read() for energy in energies)


def _scaled(part: Gradients, factor: float) -> Gradients:
    if isinstance(part, tuple):
        values = part[1].work_values
        return part[0], part[1].like(part[1].indices, (values * np.float64(factor)).astype(values.dtype))
    return [buffer.scaled(factor) for buffer in part]


def _arrays(parts: Sequence[Gradients]) -> Iterator[Array]:
    """One after the other: buffers that are converted share their memory, so that each holds until the next."""
    for part in parts:
        yield from [part[1].work_values] if isinstance(part, tuple) else map(Buffer.read, part)


def _multiply(numbers: Array, factor: np.float64) -> None:
    if kernels.on_host(numbers):
        np.multiply(numbers, factor, out=numbers, casting="same_kind")
    else:
        multiply_wide(numbers, float(factor))
