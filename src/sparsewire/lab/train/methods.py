"""The training methods that `sparsewire lab train` compares, and how they are written.

A method is `ddp`, `alone` (no exchange: the floor of a step), `fp16`, `bf16`, `powersgd`, `post-local-sgd`, `auto`, a
scheme, or `local:`, `keras:` or `jax:` and a scheme; `attach` and `local-steps` choose their scheme by the optimizer
and the steps. Settings follow after semicolons: those of `attach` for schemes, of `local_steps` for `local:`, of the
hook for others. `falling=true` lets the scheme's ratio fall as training goes on, with itself as the mean.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, field
from typing import Any

from sparsewire.codecs.contract import SLOTS
from sparsewire.codecs.presets import PRESETS
from sparsewire.codecs.registry import codecs, nearest
from sparsewire.codecs.scheme import scheme
from sparsewire.errors import InputError, SchemeError
from sparsewire.planning.auto import read_auto
from sparsewire.torch import attach, local_steps

from .hooks import HOOKS

PLAIN, LOCAL, KERAS, JAX, AUTO = "ddp", "local:", "keras:", "jax:", "auto"
TORCH = {
    PLAIN: "none", "alone": "alone", "fp16": "fp16", "bf16": "bf16", "powersgd": "powersgd",
    "post-local-sgd": "post_local",
}  # fmt: skip
STARTS = (LOCAL, KERAS, JAX)  # of a method with a scheme of its own
CHOSEN = {"attach": "sparsewire", "local-steps": "local"}  # without a scheme
PERIODIC = ("local", "post_local")  # their steps are not alike: one of several exchanges
OURS = {"fitted", "falling", "views"}
GIVEN = {"model", "module", "scheme", "optimizer", "group"}  # not settings
OBJECTS = {"on_step", "on_round", "scaler"}  # nor can these be written
LONG = 100  # characters of a name


@dataclass(frozen=True)
class Method:
    """`text` says it all; `name` is for people."""

    text: str
    hook: str
    scheme: str | None
    settings: dict[str, Any] = field(compare=False)
    name: str = field(default="", compare=False)

    @property
    def periodic(self) -> bool:
        return self.hook in PERIODIC

    def arm(self, steps: int) -> dict[str, Any]:
        """The settings of its `Arm`, for so many steps."""
        rest = dict(self.settings)
        if rest.pop("falling", False):
            assert self.scheme is not None
            rest["falling"] = [steps, scheme(self.scheme).select.ratio]  # type: ignore[attr-defined]
        if self.text.partition(";")[0] in CHOSEN:
            rest.setdefault("total_steps", steps)
        given = {} if self.scheme is None else {"scheme": self.scheme}
        return {"hook": self.hook, **given, **rest}


def read_method(text: str, name: str = "") -> Method:
    """A method as it is written; `name := method` gives it a name.

    >>> read_method("top 1% := topk(1%); select_per=model").name
    'top 1%'
    """
    label, named, rest = text.partition(" := ")
    if named:
        return read_method(rest, label.strip())
    head, *more = [part.strip() for part in text.split(";")]
    settings = dict(_setting(part, text) for part in more)
    hook, plan = _hook(head)
    _check(hook, plan, settings, text)
    whole = "; ".join([head, *more])
    return Method(whole, hook, plan, settings, name or _short(whole))


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[: LONG // 2]}…{text[1 - LONG // 2 :]}"


def _hook(head: str) -> tuple[str, str | None]:
    if head in TORCH or head in CHOSEN:
        return (TORCH | CHOSEN)[head], None
    for start in STARTS:
        if head.startswith(start):
            return start.rstrip(":"), head.removeprefix(start).strip()
    return "sparsewire", head


def _setting(part: str, text: str) -> tuple[str, Any]:
    name, equals, value = (word.strip() for word in part.partition("="))
    if not equals:
        raise InputError(f"{part!r} in the method {text!r} is not a setting: write name=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _check(hook: str, plan: str | None, settings: dict[str, Any], text: str) -> None:
    """Before any rank starts: the scheme can be read, and the settings are known."""
    ratio = None if plan is None else _ratio(hook, plan)
    called: Any = {"sparsewire": attach, "local": local_steps}.get(hook) or HOOKS[hook]
    known = {*inspect.signature(called).parameters} - GIVEN - OBJECTS | {"pruned"}
    known |= OURS if hook == "sparsewire" else set()
    unknown = sorted({*settings} - known)
    if unknown:
        raise InputError(f"{', '.join(unknown)} in the method {text!r} is not known; known: {', '.join(sorted(known))}")
    if settings.get("falling") and ratio is None:
        raise InputError(f"falling in the method {text!r} needs a scheme with a ratio, such as topk(1%)")


def _ratio(hook: str, plan: str) -> float | None:
    """The ratio of a scheme's selection, if it has one."""
    try:
        return None if hook == "sparsewire" and read_auto(plan) else getattr(scheme(plan).select, "ratio", None)
    except SchemeError:
        if hook == "sparsewire":
            _refuse_unknown(plan)
        raise


def _refuse_unknown(head: str) -> None:
    """Refuses a misspelt method; a scheme whose later parts are wrong has an error of its own."""
    schemes = [AUTO, *PRESETS, *codecs("select")]
    word = re.split(r"[\s(|:=]", head, maxsplit=1)[0]
    if word in (*TORCH, *CHOSEN):
        raise InputError(f"{head!r} is not a method: settings of {word} follow after semicolons: {word}; name=value")
    if word not in (*schemes, *SLOTS):
        known = [*TORCH, *CHOSEN, *(f"{start}…" for start in STARTS), *schemes]
        raise InputError(f"there is no method {word!r}{nearest(word.lower(), known)}")
