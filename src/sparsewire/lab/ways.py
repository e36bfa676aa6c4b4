"""The ways to train that `sparsewire lab train` compares, and how they are written.

A way is `ddp`, `fp16`, `bf16`, `powersgd`, `post-local-sgd`, `auto`, a scheme, or `local:` and a scheme. Settings
follow after semicolons: those of `attach` for schemes, of `local_steps` for `local:`, of the hook for torch's ways.
`falling=true` lets the scheme's ratio fall as training goes on, with itself as the mean.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from typing import Any

from ..auto import read_auto
from ..errors import InputError
from ..scheme import scheme
from ..torch import attach, local_steps
from .hooks import HOOKS

PLAIN, LOCAL = "ddp", "local:"
TORCH = {PLAIN: "none", "fp16": "fp16", "bf16": "bf16", "powersgd": "powersgd", "post-local-sgd": "post_local"}
PERIODIC = ("local", "post_local")  # their steps are not alike: one of several exchanges
OURS = {"fitted", "falling"}
GIVEN = {"model", "module", "scheme", "optimizer", "group"}  # not settings


@dataclass(frozen=True)
class Way:
    """`text` says it all; `name` is for people."""

    text: str
    hook: str
    scheme: str | None
    settings: dict[str, Any] = field(compare=False)
    name: str = ""

    @property
    def periodic(self) -> bool:
        return self.hook in PERIODIC

    def arm(self, steps: int) -> dict[str, Any]:
        """The settings of its `Arm`, for so many steps."""
        rest = dict(self.settings)
        if rest.pop("falling", False):
            assert self.scheme is not None
            rest["falling"] = [steps, scheme(self.scheme).select.ratio]  # type: ignore[attr-defined]
        given = {} if self.scheme is None else {"scheme": self.scheme}
        return {"hook": self.hook, **given, **rest}


def read_way(text: str, name: str = "") -> Way:
    """A way as it is written; `name := way` gives it a name.

    >>> read_way("top 1% := topk(1%); select_per=model").name
    'top 1%'
    """
    label, found, rest = text.partition(" := ")
    if found:
        return read_way(rest, label.strip())
    head, *more = [part.strip() for part in text.split(";")]
    settings = dict(_setting(part, text) for part in more)
    hook, plan = _hook(head)
    _check(hook, plan, settings, text)
    return Way("; ".join([head, *more]), hook, plan, settings, name or head)


def _hook(head: str) -> tuple[str, str | None]:
    if head in TORCH:
        return TORCH[head], None
    return ("local", head.removeprefix(LOCAL).strip()) if head.startswith(LOCAL) else ("sparsewire", head)


def _setting(part: str, text: str) -> tuple[str, Any]:
    name, found, value = (word.strip() for word in part.partition("="))
    if not found:
        raise InputError(f"{part!r} in the way {text!r} is not a setting: write name=value")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _check(hook: str, plan: str | None, settings: dict[str, Any], text: str) -> None:
    """Before any rank starts: the scheme can be read, and the settings are known."""
    called: Any = {"sparsewire": attach, "local": local_steps}.get(hook) or HOOKS[hook]
    known = {*inspect.signature(called).parameters} - GIVEN | {"pruned"} | (OURS if hook == "sparsewire" else set())
    unknown = sorted({*settings} - known)
    if unknown:
        raise InputError(f"{', '.join(unknown)} in the way {text!r} is not known; known: {', '.join(sorted(known))}")
    ratio = None if plan is None or read_auto(plan) else getattr(scheme(plan).select, "ratio", None)
    if settings.get("falling") and ratio is None:
        raise InputError(f"falling in the way {text!r} needs a scheme with a ratio, such as topk(1%)")
