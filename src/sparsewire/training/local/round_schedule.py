"""The schedule of rounds: how many local steps each round has, and which tensors each of its meetings exchanges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsewire.errors import InputError

from ..schedule import is_whole

Every = int | Callable[[int], int] | Sequence[tuple[int, int]]


@dataclass(frozen=True)
class RoundSchedule:
    """Local steps by round: a number, a function of the round, or (until_round, every) pairs whose last one stays.

    >>> schedule = RoundSchedule(((2, 10), (4, 50)))
    >>> [schedule(round_) for round_ in (0, 1, 2, 9)]
    [10, 10, 50, 50]

    A round has at least one step for each of the model's fragments, and more than `overlap` between two meetings. A
    length that a function gives is known, and refused, only when its round begins.
    """

    every: Any
    fragments: int = 1
    overlap: int = 0

    def __post_init__(self) -> None:
        if not (callable(self.every) or is_whole(self.every)):
            object.__setattr__(self, "every", _pairs(self.every))
        self._check_room(self._least(), "every")

    def __call__(self, round_: int) -> int:
        if callable(self.every):
            try:
                length = _checked(self.every(round_), f"every({round_}) gave")
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"every({round_}) raised {type(error).__name__}: {error}") from error
            return self._check_room(length, f"every({round_})")
        if is_whole(self.every):
            return _checked(self.every, "every is")
        return next((every for until, every in self.every if round_ < until), self.every[-1][1])

    def _least(self) -> int:
        """The shortest round; of a function the first one."""
        return self(0) if callable(self.every) or is_whole(self.every) else min(every for _, every in self.every)

    def _check_room(self, length: int, name: str) -> int:
        """A length that has room for the fragments and the overlap."""
        if length < self.fragments:
            raise InputError(f"{name}={length} is less than fragments={self.fragments}: each needs a step of its own")
        if self.overlap >= length // self.fragments:
            raise InputError(f"overlap={self.overlap}: it must be below {length // self.fragments}, when the next "
                             f"exchange begins ({name}={length}, fragments={self.fragments})")  # fmt: skip
        return length

    def __str__(self) -> str:
        if callable(self.every):
            return "a function"
        return str(self.every) if is_whole(self.every) else ", ".join(f"{n} until {until}" for until, n in self.every)


def steps_until(length: int, fragment: int, fragments: int) -> int:
    """Steps before meeting `fragment` of a round that has so many; over the round they add up to its length.

    >>> [steps_until(10, fragment, 3) for fragment in range(3)]
    [3, 3, 4]
    """
    return (fragment + 1) * length // fragments - fragment * length // fragments


def split(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """The names in `count` parts of about the same size, in their order; none is empty.

    >>> split({"a": 5, "b": 1, "c": 1, "d": 5}, 2)
    [['a', 'b'], ['c', 'd']]
    """
    if not 1 <= count <= max(1, len(sizes)):
        raise InputError(f"fragments={count}: a model of {len(sizes)} tensors has 1 … {max(1, len(sizes))} fragments")
    parts: list[list[str]] = [[]]
    total, done = sum(sizes.values()), 0
    for place, (name, size) in enumerate(sizes.items()):
        behind = len(sizes) - place  # tensors that are left, this one included
        missing = count - len(parts)  # parts that have yet to begin
        full = (done + size / 2) * count >= total * len(parts)
        if parts[-1] and missing and (full or behind <= missing):
            parts.append([])
        parts[-1].append(name)
        done += size
    return parts


def _pairs(every: Any) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [(until, steps) for until, steps in every]
    except (TypeError, ValueError):
        pairs = []
    if not pairs:
        raise InputError(
            f"every is a number of steps, a function of the round, or (until_round, every) pairs, not {every!r}"
        )
    before = 0
    for until, _ in pairs:
        if not is_whole(until) or until <= before:
            raise InputError(f"every: rounds are whole numbers that ascend, but {until!r} follows {before!r}")
        before = until
    return tuple((int(until), _checked(steps, f"every until round {until} is")) for until, steps in pairs)


def _checked(steps: Any, where: str) -> int:
    if not is_whole(steps) or steps < 1:
        raise InputError(f"{where} {steps!r}; a round has a whole number of steps, 1 or more")
    return int(steps)
