"""A `Scheme` is the six slots filled. String, dict and object are one: each converts to the others.

    topk(ratio=0.01) | indices=rice | values=qsgd(bits=7)+deflate | memory=residual

The selection comes first, or a preset's name; the other slots follow in any order, each `slot=codec(settings)`; a slot
that is not named has its default. Settings are numbers, percentages, true, false, none or names, by keyword or in their
declared order.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from sparsewire.errors import HeaderError, SchemeError

from .contract import SLOTS, Codec, ExchangeCodec, IndexCodec, Memory, Select, Transform
from .presets import PRESETS, expand
from .record import CodecRecord, Parameter, pack_record, unpack_record
from .registry import codecs, find, find_wire, nearest, suggestion
from .syntax import CALL, read_call, refuse_repeated, split
from .transform import Identity
from .values.chain import Chain

DEFAULTS = {
    "select": "nonzero",
    "transform": "identity",
    "indices": "best",
    "values": "entropy",
    "memory": "residual",
    "exchange": "allgather",
}
Built = TypeVar("Built", bound=Codec)


@dataclass(frozen=True)
class Scheme:
    """How a tensor is made small: `str()`, `to_dict()` and `scheme()` go round in a circle.

    >>> s = scheme("topk(1%) | indices=rice")
    >>> s == scheme(str(s)) == scheme(s.to_dict())
    True
    """

    select: Select
    transform: Transform
    indices: IndexCodec
    values: Chain
    memory: Memory
    exchange: ExchangeCodec

    def __str__(self) -> str:
        slots = (f"{slot}={getattr(self, slot)}" for slot in SLOTS[1:])
        return " | ".join([str(self.select), *slots])

    @property
    def brief(self) -> str:
        """The shortest text of it: slots and settings that have their default are left out.

        >>> scheme("topk(1%) | indices=rice | values=qsgd(bits=7) | memory=residual").brief
        'topk(ratio=0.01) | indices=rice | values=qsgd'
        """
        slots = {slot: "+".join(codec.brief for codec in self._codecs(slot)) for slot in SLOTS[1:]}
        shown = (f"{slot}={words}" for slot, words in slots.items() if words != DEFAULTS[slot])
        return " | ".join([self.select.brief, *shown])

    def to_dict(self) -> dict[str, Any]:
        """Plain types only: fit for JSON."""
        return {slot: getattr(self, slot).to_dict() for slot in SLOTS}

    @functools.cached_property
    def record(self) -> bytes:
        """The scheme as frames carry it: per slot the stages, each a number or name and the settings in order."""
        return pack_record(tuple(tuple(_to_stage(codec) for codec in self._codecs(slot)) for slot in SLOTS))

    @functools.cached_property
    def untransformed(self) -> Scheme:
        """The same without a transform."""
        return self if self.transform.is_identity else replace(self, transform=Identity())

    def framed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A tensor's shape as frames say it: flat, unless the transform depends on more."""
        flat = (math.prod(shape),)
        return flat if self.transform.fitted(shape) == self.transform.fitted(flat) else shape

    def _codecs(self, slot: str) -> tuple[Codec, ...]:
        filled = getattr(self, slot)
        return filled.stages if isinstance(filled, Chain) else (filled,)


Spec = str | Mapping[str, Any] | Scheme


def scheme(spec: Spec) -> Scheme:
    """A scheme from its string or its dict; a scheme passes through.

    >>> scheme("topk(1%) | values=qsgd(7)").values
    Chain(stages=(QSGD(bits=7, bucket=512),))
    """
    if isinstance(spec, Scheme):
        return spec
    if isinstance(spec, str):
        return _from_string(spec)
    if isinstance(spec, Mapping):
        return _from_dict(spec)
    raise SchemeError(f"a scheme is a string, a dict or a Scheme, not {type(spec).__name__}")


@functools.lru_cache(maxsize=256)
def from_record(record: bytes) -> Scheme:
    """The scheme that a frame carries."""
    slots: dict[str, list[Codec]] = {}
    for slot, stages in zip(SLOTS, unpack_record(record), strict=True):
        slots[slot] = [_from_stage(slot, stage) for stage in stages]
    try:
        return _fill(slots)
    except SchemeError as error:
        raise HeaderError(f"the frame's scheme is not valid: {error}") from None


def _fill(slots: Mapping[str, list[Codec]]) -> Scheme:
    filled: dict[str, Any] = {}
    for slot in SLOTS:
        stages = slots.get(slot) or [find(slot, DEFAULTS[slot])()]
        if slot != "values" and len(stages) != 1:
            raise SchemeError(f"{slot} takes one codec; only values can be chained with '+'")
        filled[slot] = Chain(tuple(stages)) if slot == "values" else stages[0]
    return Scheme(**filled)


# --- strings -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _from_string(spec: str) -> Scheme:
    first, *others = split(spec, "|", spec)
    preset = _expand(first, spec)
    given: dict[str, str] = {}
    for position, part in enumerate(others if preset else [first, *others]):
        slot, stages = _split_slot(part, position + bool(preset), spec)
        if slot in given:
            raise SchemeError(f"{slot} is given twice in {spec!r}")
        given[slot] = stages
    return _fill({slot: _parse_stages(slot, stages, spec) for slot, stages in {**preset, **given}.items()})


def _expand(part: str, spec: str) -> dict[str, str]:
    """A preset's slots, if the scheme starts with one; the slots that follow it replace its own."""
    call = read_call(part, spec)
    if call is None or call[0] in codecs("select"):
        return {}
    if call[0] not in PRESETS:
        raise SchemeError(f"select has no {call[0]!r}{suggestion(call[0], [*PRESETS, *codecs('select')], 'select')}")
    first, *others = split(expand(*call).scheme, "|", spec)
    return {"select": first, **dict(_split_slot(other, 1, spec) for other in others)}


def _parse_stages(slot: str, stages: str, spec: str) -> list[Codec]:
    return [_parse_codec(slot, stage, spec) for stage in split(stages, "+", spec)]


def _split_slot(part: str, position: int, spec: str) -> tuple[str, str]:
    slot, equals, stages = part.partition("=")
    if position == 0 and ("(" in slot or not equals):
        return "select", part
    slot = slot.strip()
    if not equals or slot not in SLOTS:
        raise SchemeError(f"{part!r} in {spec!r} should read slot=codec{nearest(slot, SLOTS)}")
    return slot, stages


def _parse_codec(slot: str, call: str, spec: str) -> Codec:
    name, positional, named = parse_call(call, spec)
    return build(find(slot, name), positional, named)


def parse_call(call: str, spec: str) -> tuple[str, list[Parameter], dict[str, Parameter]]:
    """`name(value, setting=value)` as (name, values, settings by name); `spec` is what the user wrote, for errors."""
    match = CALL.match(call)
    if match is None:
        raise SchemeError(f"{call!r} in {spec!r} should read name or name(setting=value, …)")
    positional: list[Parameter] = []
    named: dict[str, Parameter] = {}
    for item in filter(None, split(match["settings"] or "", ",", spec)):
        key, equals, value = item.partition("=")
        if equals:
            refuse_repeated(key.strip(), named, call)
            named[key.strip()] = _parse_value(value.strip(), match["name"])
        elif named:
            raise SchemeError(f"{call!r} in {spec!r}: a setting without a name must come first")
        else:
            positional.append(_parse_value(item, match["name"]))
    return match["name"], positional, named


def _parse_value(word: str, owner: str) -> Parameter:
    constants: dict[str, Parameter] = {"true": True, "false": False, "none": None}
    if word.lower() in constants:
        return constants[word.lower()]
    try:
        if word.endswith("%"):
            return float(Decimal(word[:-1]) / 100)
        if not re.fullmatch(r"[+-]?\d+", word):
            return float(Decimal(word))
    except (InvalidOperation, ValueError, OverflowError):
        return word
    if len(word) > 20:
        raise SchemeError(f"{owner}: the number {word[:20]}… is too large")
    return int(word)


def build(codec: type[Built], positional: list[Parameter], named: Mapping[str, Any]) -> Built:
    """A codec with these settings; what it does not know is an error."""
    known = [item.name for item in fields(codec)]
    if len(positional) > len(known):
        raise SchemeError(f"{codec.id} takes at most {len(known)} settings ({', '.join(known) or 'none'})")
    settings = dict(zip(known, positional, strict=False))
    for key, value in named.items():
        if key not in known:
            raise SchemeError(f"{codec.id} has no setting {key!r}{nearest(key, known)}")
        if key in settings:
            raise SchemeError(f"{codec.id}: {key} is given twice")
        settings[key] = value
    return codec(**settings)


# --- dicts and records -------------------------------------------------------------------------------------------


def _from_dict(spec: Mapping[str, Any]) -> Scheme:
    slots: dict[str, list[Codec]] = {}
    for slot, filled in spec.items():
        if slot not in SLOTS:
            raise SchemeError(f"there is no slot {slot!r}{nearest(str(slot), SLOTS)}")
        stages = filled if isinstance(filled, (list, tuple)) else [filled]
        slots[slot] = [_codec_from(slot, stage) for stage in stages]
    return _fill(slots)


def _codec_from(slot: str, stage: Any) -> Codec:
    if isinstance(stage, str):
        return _parse_codec(slot, stage, stage)
    if not isinstance(stage, Mapping) or "id" not in stage:
        raise SchemeError(f"{slot} should be a string or a dict with an 'id', not {stage!r}")
    return build(find(slot, str(stage["id"])), [], {key: value for key, value in stage.items() if key != "id"})


def _to_stage(codec: Codec) -> CodecRecord:
    """Settings at the end that have their default are left out: defaults are part of the format."""
    settings = [(getattr(codec, item.name), item.default) for item in fields(codec)]
    while settings and settings[-1][0] == settings[-1][1]:
        settings.pop()
    return codec.wire_id or codec.id, tuple(value for value, _ in settings)


def _from_stage(slot: str, stage: CodecRecord) -> Codec:
    name, parameters = stage
    codec = find_wire(slot, name)
    known = [item.name for item in fields(codec)]
    if len(parameters) > len(known):
        raise HeaderError(f"{codec.id} has {len(known)} settings, the frame gives {len(parameters)}")
    try:
        return codec(**dict(zip(known, parameters, strict=False)))
    except SchemeError as error:
        raise HeaderError(f"the frame's scheme is not valid: {error}") from None
