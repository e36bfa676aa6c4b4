"""The words of schemes: parts between separators, and calls such as `topk(ratio=0.01)`."""

from __future__ import annotations

import re
from collections.abc import Collection

from sparsewire.errors import SchemeError

CALL = re.compile(r"(?P<name>[^\W\d]\w*)\s*(?:\((?P<settings>.*)\))?\s*\Z", re.DOTALL)


def split(text: str, separator: str, spec: str) -> list[str]:
    """The parts between separators that stand outside all brackets; errors quote `spec`.

    >>> split("a(b|c) | d", "|", "")
    ['a(b|c)', 'd']
    """
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
        if sign == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    if depth:
        raise SchemeError(f"the brackets in {spec!r} do not match")
    return [part.strip() for part in parts]


def read_call(part: str, spec: str) -> tuple[str, dict[str, str]] | None:
    """(name, the texts of its settings by name); None for what is no call.

    >>> read_call("sbc(level=2)", "")
    ('sbc', {'level': '2'})
    """
    match = CALL.match(part)
    if match is None:
        return None
    settings: dict[str, str] = {}
    for item in filter(None, split(match["settings"] or "", ",", spec)):
        key, equals, value = (word.strip() for word in item.partition("="))
        if equals:
            refuse_repeated(key, settings, part)
        settings[key] = value
    return match["name"], settings


def refuse_repeated(key: str, settings: Collection[str], call: str) -> None:
    if key in settings:
        raise SchemeError(f"{call!r} sets {key} twice")
