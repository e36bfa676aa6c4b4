"""The settings of `auto`: which schemes it may choose from, and how much faster than dense one has to be."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparsewire.codecs.registry import nearest
from sparsewire.codecs.scheme import Scheme, Spec, scheme
from sparsewire.codecs.syntax import read_call, split
from sparsewire.errors import SchemeError
from sparsewire.training.schedule import SchemeSchedule

from ..cost.model import MODELS

NAME = "auto"
SETTINGS = ("ratio", "margin")
CODECS = ("indices=rice | values=qsgd(bits=7)", "indices=best | values=entropy(error=0.05)")  # fast ones, small ones
EXCHANGES = ("allgather", "reduce_scatter")


@dataclass(frozen=True)
class Auto:
    """`attach(model, Auto(candidates=[…]))`: dense, or the scheme out of these with the shortest step.

    candidates: schemes with one memory. margin: how much shorter than a dense step a compressed one has to be.
    """

    candidates: Sequence[Spec]
    margin: float = 0.05
    plans: tuple[Scheme, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.candidates, (str, Mapping)) or not isinstance(self.candidates, Sequence):
            raise SchemeError(f"auto: candidates is a list of schemes, not {self.candidates!r}")
        if not self.candidates:
            raise SchemeError("auto: candidates needs one scheme at least; dense is always one more")
        object.__setattr__(self, "plans", tuple(dict.fromkeys(scheme(spec) for spec in self.candidates)))
        if len({plan.memory for plan in self.plans}) > 1:
            raise SchemeError("auto: the candidates need one memory, as what waits passes from one to the next")
        if any(plan.exchange.uses_masks for plan in self.plans):
            raise SchemeError("auto: support=mask sends what pruning has left, in every step; attach that scheme alone")
        if unknown := {plan.exchange.id for plan in self.plans} - set(MODELS):
            raise SchemeError(f"auto: exchange={', '.join(sorted(unknown))} has no cost model to predict steps by")
        margin = self.margin
        if isinstance(margin, bool) or not isinstance(margin, numbers.Real) or not 0 <= float(margin) < 10:
            raise SchemeError(f"auto: margin is a share such as 0.05, not {margin!r}")

    def __str__(self) -> str:
        return f"auto(margin={float(self.margin):g}) of {'; '.join(map(str, self.plans))}"


def read_auto(spec: object) -> Auto | None:
    """The settings that "auto" or "auto(ratio=1%, margin=5%) | slot=codec | …" stands for; None for other schemes.

    Slots that follow are those of all candidates.

    >>> [str(plan.exchange) for plan in read_auto("auto(ratio=2%) | values=raw").plans]
    ['allgather(mean=all)', 'reduce_scatter(route=direct)']
    >>> read_auto("topk(1%)") is None
    True
    """
    if isinstance(spec, Auto):
        return spec
    head, *slots = split(spec, "|", spec) if isinstance(spec, str) else [""]
    call = read_call(head, str(spec))
    if call is None or call[0] != NAME:
        return None
    given = _settings(call[1])
    return Auto(_candidates(given.get("ratio", "1%"), slots), _share(given.get("margin", "5%")))


def _settings(given: dict[str, str]) -> dict[str, str]:
    for key, value in given.items():
        if key not in SETTINGS or not value:
            known = ", ".join(SETTINGS)
            raise SchemeError(f"auto takes {known} by name, not {key!r}{nearest(key, SETTINGS)}; for others Auto(…)")
    return given


def _candidates(ratio: str, slots: Sequence[str]) -> list[str]:
    named = {slot.partition("=")[0].strip() for slot in slots}
    codecs = [""] if named & {"indices", "values"} else list(CODECS)
    exchanges = [""] if "exchange" in named else [f"exchange={name}" for name in EXCHANGES]
    return [
        " | ".join(filter(None, [f"topk({ratio})", coding, *slots, exchange]))
        for coding in codecs
        for exchange in exchanges
    ]


def _share(word: str) -> Any:
    try:
        return float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        return word


@dataclass
class ActiveScheme:
    """The scheme of the next step, which the controller sets and the schedule reads; None for a dense step."""

    scheme: Scheme | None = None


@dataclass(frozen=True)
class AutoSchedule(SchemeSchedule):
    """A schedule whose steps are dense or go by one of several schemes, as `active` says.

    `scheme` is the first of the candidates.
    """

    active: ActiveScheme = field(default_factory=ActiveScheme)

    def at(self, step: int) -> Scheme | None:
        plan = self.active.scheme
        return None if plan is None else SchemeSchedule(plan, self.warmup_steps, self.ratios).at(step)
