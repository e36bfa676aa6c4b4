"""What the server demands of an update before it counts it. Bytes may come from anyone."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import kernels
from ..errors import FrameError, InputError, UpdateRefused
from ..sparse import Sparse
from ..wire import Data
from .coding import Coder
from .envelope import Up, unpack_up
from .model import Model, norm

SLACK = 65_536  # bytes that a message may take beyond twice the weights
ENOUGH_NORMS, RECENT = 5, 200


@dataclass(frozen=True)
class Limits:
    """Caps on what one client may do in a round.

    max_bytes: of a message; None: twice the weights and 64 KiB. max_examples: that a client may claim to have used.
    max_norm: of an update; None: `norm_ratio` times the median of the last updates' norms, or, before there are five,
    of the model's own norm or one per weight, whichever is larger. norm_ratio=None: any finite norm.
    """

    max_bytes: int | None = None
    max_examples: int = 10**9
    max_norm: float | None = None
    norm_ratio: float | None = 100.0

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_examples", "max_norm", "norm_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} is above 0, not {value!r}")


@dataclass(frozen=True)
class Update:
    """A client's change that passed all checks."""

    examples: int
    parts: list[Sparse]
    norm: float
    size: int


@dataclass
class Inbox:
    """Reads updates. `norms` are those of the last updates that were counted."""

    coder: Coder
    limits: Limits
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def read(self, client: object, data: Data, model: Model, round_: int) -> Update:
        """The update, or an `UpdateRefused` that names the client."""
        try:
            return self._read(data, model, round_)
        except (FrameError, _Doubt) as error:
            raise UpdateRefused(client, str(error)) from error

    def _read(self, data: Data, model: Model, round_: int) -> Update:
        size = memoryview(data).nbytes
        most = self.limits.max_bytes or 2 * model.dense_bytes + SLACK
        if size > most:
            raise _Doubt(f"a message of {size} bytes, the server takes {most} (max_bytes)")
        up = unpack_up(data)
        _check_base(up, model, round_)
        if not 1 <= up.examples <= self.limits.max_examples:
            raise _Doubt(f"{up.examples} examples, the server takes 1 … {self.limits.max_examples} (max_examples)")
        parts = self.coder.open(up.body, model.tensors)
        return Update(up.examples, parts, self._norm(parts, model), size)

    def _norm(self, parts: Sequence[Sparse], model: Model) -> float:
        if not all(kernels.all_finite(part.work_values) for part in parts):
            raise _Doubt("its update has numbers that are not finite")
        found, most = norm(part.work_values for part in parts), self.most_norm(model)
        if found > most:
            raise _Doubt(
                f"its update has the norm {found:.3g}, the server takes up to {most:.3g} (max_norm, norm_ratio)"
            )
        return found

    def most_norm(self, model: Model) -> float:
        if self.limits.max_norm is not None or self.limits.norm_ratio is None:
            return self.limits.max_norm or math.inf
        if len(self.norms) >= ENOUGH_NORMS:
            usual = statistics.median(self.norms)
        else:
            usual = max(model.norm, math.sqrt(sum(one.size for one in model.tensors)))
        return self.limits.norm_ratio * usual if usual else math.inf


class _Doubt(Exception):
    """Why a message that can be read is refused."""


def _check_base(up: Up, model: Model, round_: int) -> None:
    if up.round != round_:
        told = "its change waits in its residual until the next broadcast" if up.round < round_ else "no such round"
        raise _Doubt(f"an update of round {up.round}, the server is at round {round_}: {told}")
    if up.digest != model.digest:
        raise _Doubt("an update of another model than the one that was sent to it")
