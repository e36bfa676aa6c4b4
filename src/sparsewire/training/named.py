"""What a scheme's text says and what it leaves open: its memory, and how much is selected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sparsewire.codecs.contract import Memory
from sparsewire.codecs.presets import PRESETS
from sparsewire.codecs.registry import codecs, find
from sparsewire.codecs.scheme import Scheme, Spec, scheme
from sparsewire.codecs.syntax import read_call, split

SELECT = "topk"


def names_memory(spec: Spec) -> bool:
    """Whether a scheme says its memory: a preset does, and a Scheme.

    >>> [names_memory(text) for text in ("topk(1%)", "topk(1%) | memory=gmc", "sbc(level=2)", "auto")]
    [False, True, True, False]
    """
    if isinstance(spec, Mapping):
        return "memory" in spec
    if not isinstance(spec, str):
        return True
    parts = split(spec, "|", spec)
    return _is_preset(parts[0]) or any(part.partition("=")[0].strip() == "memory" for part in parts)


def names_ratio(spec: Spec) -> bool:
    """Whether the scheme says how much is selected, or has a selection without a ratio."""
    call = _head(spec)
    if call is None or call[0] in PRESETS:
        return True
    name, settings = call
    if name not in codecs("select"):  # such as auto
        return "ratio" in settings
    return bool(settings) or "ratio" not in {item.name for item in fields(find("select", name))}


def complete(spec: Spec, memory: str | Memory | None, ratio: float | None) -> Spec:
    """The scheme with this memory and this ratio in its selection, where they are given.

    >>> complete("topk | values=raw", "gmc", 0.02)
    'topk(ratio=0.02) | values=raw | memory=gmc'
    """
    if isinstance(spec, Mapping) and memory is not None:
        return {**spec, "memory": str(memory)}
    if not isinstance(spec, str):
        return spec
    first, *slots = split(spec, "|", spec)
    if ratio is not None:
        name, settings = read_call(first, spec) or (first, {})
        words = [f"{key}={value}" for key, value in settings.items()]
        first = f"{name}({', '.join([f'ratio={ratio!r}', *words])})"
    return " | ".join([first, *slots, *([] if memory is None else [f"memory={memory}"])])


def look_at(spec: Spec) -> Scheme:
    """The scheme; one that starts with a word of its own, such as auto, as top-k with the same slots."""
    call = _head(spec)
    if isinstance(spec, str) and call is not None and call[0] == "auto":
        ratio = call[1].get("ratio", "1%")
        return scheme(" | ".join([f"{SELECT}({ratio})", *split(spec, "|", spec)[1:]]))
    return scheme(spec)


def _head(spec: Spec) -> tuple[str, dict[str, str]] | None:
    """The call that a scheme's text begins with."""
    return read_call(split(spec, "|", spec)[0], spec) if isinstance(spec, str) else None


def _is_preset(part: str) -> bool:
    call = read_call(part, part)
    return call is not None and call[0] in PRESETS and call[0] not in codecs("select")
