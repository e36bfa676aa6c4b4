"""The settings of local steps, checked before anything is sent: a refusal names the setting and its valid values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sparsewire.codecs import presets
from sparsewire.codecs.scheme import Scheme, Spec
from sparsewire.codecs.scheme import scheme as read_scheme
from sparsewire.errors import InputError, SchemeError

from ..schedule import Ratios, SchemeSchedule, Settings, is_whole
from ..settings import Exclude, TensorLike, read_settings
from .outer import OuterSpec, outer_rule
from .round_schedule import Every, RoundSchedule, split
from .rounds import Plan

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class LocalSettings:
    """The arguments of `local_steps`; None stands for the preset's setting, or the default."""

    scheme: Spec
    every: Every | None
    outer: OuterSpec | None
    mean: str | None
    mask_momentum: bool | None
    dense_rounds: int
    ratio_schedule: Ratios | None
    dense_below: int
    exclude: Exclude
    buffers: str
    fragments: int
    overlap: int
    mix: float
    seed: int
    on_round: OnRound | None
    timeout: float | None

    def read(self, parameters: Mapping[str, TensorLike], plain: frozenset[str] = frozenset()) -> tuple[Settings, Plan]:
        """Settings for the averager of these parameters, and a plan for the rounds; `plain` tensors take their mean."""
        preset = presets.local_settings(self.scheme)
        self._check()
        every = self._chosen("every", preset)
        if every is None:
            raise InputError("every is missing: how many optimizer steps a round has, e.g. every=10")
        outer = outer_rule(self._chosen("outer", preset, "sgd"))
        mask = bool(self._chosen("mask_momentum", preset, False))
        plan = Plan(RoundSchedule(every, self.fragments, self.overlap), outer, plain, self.fragments, mask)
        split({name: math.prod(tensor.shape) for name, tensor in parameters.items()}, self.fragments)
        return self._settings(parameters, preset, plan), plan

    def _chosen(self, name: str, preset: dict[str, Any], default: Any = None) -> Any:
        given = getattr(self, name)
        return preset.get(name, default) if given is None else given

    def _settings(self, parameters: Mapping[str, TensorLike], preset: dict[str, Any], plan: Plan) -> Settings:
        scheme = with_mean(read_scheme(self.scheme), self._chosen("mean", preset))
        if plan.keep_sent and not scheme.transform.is_identity:
            raise InputError(
                f"mask_momentum needs transform=identity: {scheme.transform} spreads what is sent over all entries"
            )
        settings = read_settings(
            parameters, scheme, "parameter", self.dense_below, self.exclude, self.dense_rounds, self.ratio_schedule,
            None, self.seed, None, self.timeout, None,
        )  # fmt: skip
        schedule = replace_schedule(settings.schedule, self.fragments)
        return replace(settings, schedule=schedule, dense_names=settings.dense_names | plan.plain)

    def _check(self) -> None:
        if not is_whole(self.dense_rounds) or self.dense_rounds < 0:
            raise InputError(f"dense_rounds is a whole number of rounds, 0 or more, not {self.dense_rounds!r}")
        if self.mask_momentum not in (None, True, False):
            raise InputError(f"mask_momentum is True or False, not {self.mask_momentum!r}")
        if self.on_round is not None and not callable(self.on_round):
            raise InputError(f"on_round is a function of a dict, or None, not {self.on_round!r}")
        if self.buffers not in ("mean", "keep"):
            raise InputError(f"buffers is 'mean' or 'keep', not {self.buffers!r}")
        if not is_whole(self.fragments) or self.fragments < 1:
            raise InputError(f"fragments is a whole number, 1 or more, not {self.fragments!r}")
        if not is_whole(self.overlap) or self.overlap < 0:
            raise InputError(f"overlap is a whole number of steps, 0 or more, not {self.overlap!r}")
        if isinstance(self.mix, bool) or not isinstance(self.mix, (int, float)) or not 0 <= self.mix <= 1:
            raise InputError(f"mix lies in 0 … 1, not {self.mix!r}")

    def agreed(self, plan: Plan) -> dict[str, Any]:
        """The settings that every rank must have alike, besides the averager's."""
        return {
            "every": str(plan.schedule),
            "outer": str(plan.outer),
            "mask_momentum": plan.keep_sent,
            "dense_rounds": int(self.dense_rounds),
            "buffers": self.buffers,
            "fragments": int(plan.fragments),
            "overlap": int(self.overlap),
            "mix": float(self.mix),
        }


def with_mean(scheme: Scheme, mean: str | None) -> Scheme:
    """The scheme with this rule of the mean in its exchange."""
    if mean is None:
        return scheme
    if "mean" not in {item.name for item in fields(scheme.exchange)}:
        raise SchemeError(f"exchange={scheme.exchange} has no setting mean; leave mean= out, or use exchange=allgather")
    settings: dict[str, Any] = {"mean": mean}
    return replace(scheme, exchange=replace(scheme.exchange, **settings))


def replace_schedule(schedule: SchemeSchedule, fragments: int) -> SchemeSchedule:
    """A schedule of rounds as one of meetings."""
    if fragments == 1:
        return schedule
    ratios: Any = schedule.ratios
    if callable(ratios):
        stretched: Any = Stretched(ratios, fragments)
    else:
        stretched = None if ratios is None else [(until * fragments, ratio) for until, ratio in ratios]
    return SchemeSchedule(schedule.scheme, schedule.warmup_steps * fragments, stretched)


@dataclass(frozen=True)
class Stretched:
    """A function of the round, asked at each meeting."""

    ratios: Callable[[int], float | None]
    fragments: int

    def __call__(self, meeting: int) -> float | None:
        return self.ratios(meeting // self.fragments)
