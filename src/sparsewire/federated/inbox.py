"""The checks that an update must pass before the server counts it. Its bytes may come from anyone."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from sparsewire import kernels
from sparsewire.core.sparse import Sparse
from sparsewire.errors import FrameError, InputError, UpdateRefused
from sparsewire.frames.wire import Data

from .coding import Coder
from .envelope import Up, unpack_up
from .model import MOST_WHOLE, Model, norm

SLACK = 65_536  # bytes that a message may take beyond twice the weights
ENOUGH, RECENT = 5, 200  # updates from which the usual norm and number of examples are taken: at least, at most
LEAST_NORM = 0.001  # of the model's own norm: no usual norm is taken to be smaller


@dataclass(frozen=True)
class Limits:
    """Caps on what one client may do in a round.

    max_bytes: of a message; None: twice the weights and 64 KiB. max_examples: an update that claims more is refused.
    examples_ratio: a client weighs no more than so many times the median of the examples that clients claim, whatever
    it claims itself; None: as much as it claims. max_norm: of an update's weights; None: `norm_ratio` times the median
    norm of the last updates that were not zero, or, before there are five, times the model's own norm or one per
    weight, whichever is larger. Never less than `norm_ratio` times a thousandth of that. norm_ratio=None: any finite
    norm.
    """

    max_bytes: int | None = None
    max_examples: int = 10**9
    max_norm: float | None = None
    norm_ratio: float | None = 100.0
    examples_ratio: float | None = 10.0

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_examples", "max_norm", "norm_ratio", "examples_ratio"):
            value = getattr(self, name)
            if not (value is None and name != "max_examples") and not _is_above(value, 0):
                raise InputError(f"{name} is a number above 0, not {value!r}")
        if self.examples_ratio is not None and self.examples_ratio < 1:
            raise InputError(f"examples_ratio is 1 or more, not {self.examples_ratio!r}")


def _is_above(value: Any, least: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and bool(value > least)  # type: ignore[operator]


@dataclass(frozen=True)
class Update:
    """A client's change that passed all checks."""

    round: int
    examples: int
    parts: list[Sparse]
    norm: float
    size: int


def recent() -> deque[Any]:
    return deque(maxlen=RECENT)


@dataclass
class Inbox:
    """Reads updates. `norms`, those that are not zero, and `examples` are of the last updates that were counted."""

    coder: Coder
    limits: Limits
    norms: deque[float] = field(default_factory=recent)
    examples: deque[int] = field(default_factory=recent)

    def remember(self, norms: Iterable[float], examples: Iterable[int]) -> None:
        """Updates that were counted become a measure for others."""
        self.norms.extend(norm for norm in norms if norm)
        self.examples.extend(examples)

    def known_cap(self) -> float | None:
        """The most examples that a client counts for, if earlier rounds tell."""
        if self.limits.examples_ratio is None:
            return math.inf
        return self.cap(self.examples) if len(self.examples) >= ENOUGH else None

    def cap(self, examples: Iterable[int]) -> float:
        """The most examples that a client counts for beside these; of two in the middle the smaller one decides."""
        if self.limits.examples_ratio is None:
            return math.inf
        return int(self.limits.examples_ratio * statistics.median_low(examples))

    def read(self, client: object, data: Data, model: Model, round_: int) -> Update:
        """The update, or an `UpdateRefused` that names the client."""
        try:
            return self._read(data, model, round_)
        except (FrameError, _Doubt) as error:
            raise UpdateRefused(client, str(error)) from error

    def _read(self, data: Data, model: Model, round_: int) -> Update:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise _Doubt(f"a message is bytes, not {type(data).__name__}")
        size = memoryview(data).nbytes
        most = self.limits.max_bytes or 2 * model.dense_bytes + SLACK
        if size > most:
            raise _Doubt(f"a message of {size} bytes, the server takes {most} (max_bytes)")
        up = unpack_up(data)
        _check_base(up, model, round_)
        if not 1 <= up.examples <= self.limits.max_examples:
            raise _Doubt(f"{up.examples} examples, the server takes 1 … {self.limits.max_examples} (max_examples)")
        parts = self.coder.open(up.body, model.tensors)
        return Update(round_, up.examples, parts, self._norm(parts, model), size)

    def _norm(self, parts: Sequence[Sparse], model: Model) -> float:
        if not all(kernels.all_finite(part.work_values) for part in parts):
            raise _Doubt("its update has numbers that are not finite")
        size, most = _norm_of(parts, model), self.most_norm(model)
        if size > most:
            raise _Doubt(
                f"its update has the norm {size:.3g}, the server takes up to {most:.3g} (max_norm, norm_ratio)"
            )
        counters = (part for part, info in zip(parts, model.tensors, strict=True) if info.is_whole)
        if max(map(_largest, counters), default=0) > 2 * MOST_WHOLE:
            raise _Doubt("its update changes a whole number by more than 2**53")
        return size

    def most_norm(self, model: Model) -> float:
        if self.limits.max_norm is not None or self.limits.norm_ratio is None:
            return self.limits.max_norm or math.inf
        count = sum(info.size for info in model.tensors if not info.is_whole)
        own = max(model.norm, math.sqrt(count))
        usual = max(statistics.median(self.norms), LEAST_NORM * own) if len(self.norms) >= ENOUGH else own
        return self.limits.norm_ratio * usual


def _norm_of(parts: Sequence[Sparse], model: Model) -> float:
    """The norm of what changes weights; counters of batches, say, would hide it."""
    both = zip(parts, model.tensors, strict=True)
    return norm(part.work_values for part, info in both if not info.is_whole)


def _largest(part: Sparse) -> float:
    return float(np.abs(part.work_values).max(initial=0))


class _Doubt(Exception):
    """Why a message that can be read is refused."""


def _check_base(up: Up, model: Model, round_: int) -> None:
    if up.round != round_:
        hint = "its change waits in its residual until the next broadcast" if up.round < round_ else "no such round"
        raise _Doubt(f"an update of round {up.round}, the server is at round {round_}: {hint}")
    if up.digest != model.digest:
        raise _Doubt("an update of another model than the one that was sent to it")
