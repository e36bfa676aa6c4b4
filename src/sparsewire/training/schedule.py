"""The schedule says how dense each step of a training is; `Settings` holds all that a training is told."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sparsewire.codecs.scheme import Scheme
from sparsewire.core.mask import Masks
from sparsewire.core.sparse import Sparse
from sparsewire.errors import InputError, SchemeError

Ratios = Callable[[int], float | None] | Sequence[tuple[int, float]]


def dgc_schedule(steps: int, stages: int = 4, start: float = 0.25, factor: float = 0.25) -> list[tuple[int, float]]:
    """Deep Gradient Compression's warm-up: 25 %, 6.3 %, 1.6 %, 0.4 %, `steps` each, then the scheme's own ratio.

    By epoch: `dgc_schedule(steps=steps_per_epoch)`. Stages below the scheme's own ratio have that.

    >>> dgc_schedule(100, stages=2)
    [(100, 0.25), (200, 0.0625)]
    """
    return [((stage + 1) * steps, start * factor**stage) for stage in range(stages)]


@dataclass(frozen=True)
class warmup_ratio:
    """A warm-up without stages: falls exponentially from `start` to `ratio` over `steps`, and stays there.

    >>> [round(warmup_ratio(100, 0.01)(step), 4) for step in (0, 25, 50, 100, 999)]
    [0.25, 0.1118, 0.05, 0.01, 0.01]
    """

    steps: int
    ratio: float
    start: float = 0.25

    def __post_init__(self) -> None:
        _check_steps(self.steps, "warmup_ratio: steps")
        _checked_ratio(self.ratio, "warmup_ratio has ratio")
        if not self.ratio <= _checked_ratio(self.start, "warmup_ratio has start"):
            raise SchemeError(f"warmup_ratio falls from start to ratio, but {self.start!r} is below {self.ratio!r}")

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return self.ratio
        return max(self.ratio, self.start * (self.ratio / self.start) ** (step / self.steps))


@dataclass(frozen=True)
class falling_ratio:
    """Density that falls as 1/t: `mean_ratio` on average over `total_steps`, so the same bytes in all, spent early.

    ratio_t = mean_ratio / ln((1 + knee)/knee) / (t/total_steps + knee); with the default knee 12.7 times the mean at
    the start and a quarter of it at the end, where it stays.

    >>> [round(falling_ratio(100, 0.01)(step), 4) for step in (0, 10, 50, 99)]
    [0.1272, 0.0212, 0.0049, 0.0025]
    """

    total_steps: int
    mean_ratio: float
    knee: float = 0.02

    def __post_init__(self) -> None:
        _check_steps(self.total_steps, "falling_ratio: total_steps")
        _checked_ratio(self.mean_ratio, "falling_ratio has mean_ratio")
        if not 0 < self.knee <= 1:
            raise SchemeError(f"falling_ratio: knee lies in 0 < knee ≤ 1, not {self.knee!r}")

    def __call__(self, step: int) -> float:
        start = math.log((1 + self.knee) / self.knee) * (min(step, self.total_steps) / self.total_steps + self.knee)
        return min(1.0, self.mean_ratio / start)


@dataclass(frozen=True)
class theta_schedule:
    """SuperNeurons' θ, the share of coefficients that is dropped, as a ratio_schedule: the ratio is 1 − θ.

    A function of the step, or (until, θ) pairs, of which the last one's θ stays.

    >>> theta = theta_schedule([(100, 0.95), (200, 0.9), (300, 0.85)])
    >>> [round(theta(step), 4) for step in (0, 150, 999)]
    [0.05, 0.1, 0.15]
    """

    thetas: Callable[[int], float] | Sequence[tuple[int, float]]

    def __post_init__(self) -> None:
        if not callable(self.thetas):
            pairs = _as_pairs(self.thetas, "theta_schedule", "θ")
            if not pairs:
                raise SchemeError("theta_schedule: give a function of the step, or at least one pair (until, θ)")
            object.__setattr__(self, "thetas", tuple((until, _checked_theta(theta)) for until, theta in pairs))

    def __call__(self, step: int) -> float:
        if callable(self.thetas):
            return 1 - _checked_theta(self.thetas(step))
        return 1 - next((theta for until, theta in self.thetas if step < until), self.thetas[-1][1])


@dataclass(frozen=True)
class SchemeSchedule:
    """The scheme for each step; None is a dense one.

    `ratios` is a function of the step after the warm-up, or (until, ratio) pairs in ascending order; None, or beyond
    the last pair, is the scheme's own ratio. Pairs lead to that ratio from above: none of them goes below it.
    """

    scheme: Scheme
    warmup_steps: int = 0
    ratios: Ratios | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.warmup_steps) or self.warmup_steps < 0:
            raise SchemeError(f"warmup_steps is a whole number of steps, 0 or more, not {self.warmup_steps!r}")
        if self.ratios is None:
            return
        if "ratio" not in {item.name for item in fields(self.scheme.select)}:
            raise SchemeError(f"ratio_schedule needs a selection with a ratio, not {self.scheme.select}")
        if not callable(self.ratios):
            own = getattr(self.scheme.select, "ratio", None) or 0.0
            pairs = tuple((until, max(ratio, own)) for until, ratio in _checked_pairs(self.ratios))
            object.__setattr__(self, "ratios", pairs)
        self.at(self.warmup_steps)

    def at(self, step: int) -> Scheme | None:
        if step < self.warmup_steps:
            return None
        ratio = self._ratio(step - self.warmup_steps)
        return self.scheme if ratio is None else self._with_ratio(ratio)

    def _ratio(self, step: int) -> float | None:
        if self.ratios is None:
            return None
        if not callable(self.ratios):
            return next((ratio for until, ratio in self.ratios if step < until), None)
        try:
            ratio = self.ratios(step)
        except Exception as error:
            raise SchemeError(f"ratio_schedule({step}) raised {type(error).__name__}: {error}") from error
        return None if ratio is None else _checked_ratio(ratio, f"ratio_schedule({step}) gave")

    def _with_ratio(self, ratio: float) -> Scheme:
        rest = {item.name: None for item in fields(self.scheme.select) if item.name in ("k", "value")}
        return replace(self.scheme, select=replace(self.scheme.select, **{**rest, "ratio": ratio}))


@dataclass(frozen=True)
class Settings:
    """What a training is told: the scheme for each step, and which parameters travel dense."""

    schedule: SchemeSchedule
    dense_names: frozenset[str] = frozenset()
    dense_below: int = 1024
    select_per: str = "parameter"  # or "bucket", "model"
    seed: int = 0
    on_step: Callable[[dict[str, Any]], None] | None = None
    scale: Callable[[], float] | None = None  # the loss's, as a GradScaler has it
    momenta: Callable[[], Mapping[str, float]] | None = None  # the optimizer's by parameter; None: the memory's
    rates: Callable[[], Mapping[str, float]] | None = None  # its learning rates by parameter; None: constant
    follow_rate: bool = False  # what waits keeps its weight when they change
    on_sent: Callable[[str, Sparse], None] | None = None  # what of a tensor got from here into the mean
    masks: Masks | None = None  # which elements a pruned model has left, for an exchange that uses them
    clip_norm: float | None = None  # of each rank's gradient, before compensation; divided by √ranks
    nodes: int | str | None = None  # ranks on each machine, which average among themselves first; "auto": found out
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of parameters, for transforms that go by it
    agree: Callable[[bool], bool] | None = None  # whether a step is finite for others, too, that the host must ask
    on_divergence: str | None = "warn"  # or "dense", or None: `training.guard`
    norm: Callable[[float], float] | None = None  # of the whole gradient, by that of this rank's shard of it
    decides_late: bool = False  # whether the host says after a step's means are out if it counted: `Averager.settle`

    def __post_init__(self) -> None:
        if self.select_per not in ("parameter", "bucket", "model"):
            raise InputError(f"select_per is 'parameter', 'bucket' or 'model', not {self.select_per!r}")
        if self.nodes not in (None, "auto") and not (is_whole(self.nodes) and int(self.nodes) >= 1):
            raise InputError(f"nodes is 'auto' or a number of ranks on each machine, 1 or more, not {self.nodes!r}")
        if self.on_divergence not in ("warn", "dense", None):
            raise InputError(f"on_divergence is 'warn', 'dense' or None, not {self.on_divergence!r}")
        if self.select_per == "model":
            _check_comparable(self.schedule.scheme)

    def of_part(self, parts: int) -> Settings:
        """The same for a training of which each rank has one of `parts` parts of every parameter."""
        scheme = self.schedule.scheme
        select = scheme.select.of_part(parts)
        return replace(self, schedule=replace(self.schedule, scheme=replace(scheme, select=select)))

    def is_sparse(self, name: str, size: int) -> bool:
        """Whether a parameter travels sparse, once the warm-up is over."""
        return name not in self.dense_names and size >= self.dense_below

    def shape(self, name: str, size: int, scheme: Scheme) -> tuple[int, ...]:
        """A tensor's shape as frames say it: flat, unless the transform depends on more; a part of one is flat."""
        shape = self.shapes.get(name, (size,))
        return scheme.framed_shape(shape) if math.prod(shape) == size else (size,)


def _check_comparable(scheme: Scheme) -> None:
    """Whether the tensors of a model can compete for one selection."""
    if not scheme.select.largest_of(1):
        raise SchemeError(f"select_per='model' takes the largest of all: write topk(ratio=…) or topk(k=…), 1 or more, "
                          f"instead of {scheme.select}, or leave select_per out")  # fmt: skip
    if not scheme.transform.is_identity:
        raise SchemeError(f"select_per='model' compares elements of the gradient: leave transform={scheme.transform} "
                          "out, or select_per")  # fmt: skip


def is_whole(value: Any) -> bool:
    """An integer of any kind, but no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _checked_pairs(ratios: Any) -> tuple[tuple[int, float], ...]:
    pairs = _as_pairs(ratios, "ratio_schedule", "ratio")
    return tuple((until, _checked_ratio(ratio, f"ratio_schedule until {until} has")) for until, ratio in pairs)


def _as_pairs(given: Any, what: str, of: str) -> list[tuple[int, Any]]:
    """(until, share) pairs whose steps are sound."""
    try:
        pairs = [(until, share) for until, share in given]
    except (TypeError, ValueError):
        raise SchemeError(f"{what} is a function of the step or (until, {of}) pairs, not {given!r}") from None
    for (before, _), (until, _) in itertools.pairwise([(0, None), *pairs]):
        if not is_whole(until) or until <= before:
            raise SchemeError(f"{what}: steps are whole numbers that ascend, but {until!r} follows {before!r}")
    return [(int(until), share) for until, share in pairs]


def _checked_theta(theta: Any) -> float:
    if isinstance(theta, bool) or not isinstance(theta, numbers.Real) or not 0 <= float(theta) < 1:
        raise SchemeError(f"theta_schedule has {theta!r}; θ lies in 0 ≤ θ < 1")
    return float(theta)


def _check_steps(steps: Any, what: str) -> None:
    if not is_whole(steps) or steps < 1:
        raise SchemeError(f"{what} is a whole number above 0, not {steps!r}")


def _checked_ratio(ratio: Any, where: str) -> float:
    if isinstance(ratio, bool) or not isinstance(ratio, numbers.Real) or not 0 < float(ratio) <= 1:
        raise SchemeError(f"{where} {ratio!r}; a ratio lies in 0 < ratio ≤ 1")
    return float(ratio)
