"""`sparsewire list`: the codecs of every slot and the presets, with their status and settings, within 100 columns."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from sparsewire.codecs.contract import SLOTS, Codec, text
from sparsewire.codecs.presets import PRESETS, local_settings
from sparsewire.codecs.registry import STATUSES, codecs, status
from sparsewire.errors import SchemeError
from sparsewire.lab.arguments import add_json
from sparsewire.lab.tables import publish, table

from .parsers import add

WIDTH = 56  # of the last column


def add_list(commands: Any) -> None:
    add_json(add(commands, "list", _list, "the codecs of every slot and their settings"))


def all_facts() -> dict[str, list[dict[str, Any]]]:
    """What is known of every codec, by slot, and of the presets."""
    known = {slot: [_codec_facts(codec) for codec in codecs(slot).values()] for slot in SLOTS}
    known["presets"] = [_preset_facts(name) for name in PRESETS]
    return known


def _list(args: argparse.Namespace) -> int:
    known = all_facts()
    rows = [row for slot, entries in known.items() for facts in entries for row in _rows(slot, facts)]
    legend = [f"{word}: {meaning}" for word, meaning in STATUSES.items()]
    publish("\n".join([table(["slot", "codec", "status", "what it does"], rows), "", *legend]), known, args.json)
    return 0


def _rows(slot: str, facts: dict[str, Any]) -> Iterator[list[str]]:
    """One row of the table for each line of the description, which is wrapped, and then of the settings."""
    first, *rest = [*_wrapped(facts["description"]), *_wrapped(_call(facts)), *_wrapped(_local(facts))]
    yield [slot, facts["id"], facts["status"], first]
    for line in rest:
        yield ["", "", "", f"  {line}"]


def _wrapped(sentences: str) -> list[str]:
    return textwrap.wrap(sentences, WIDTH, break_on_hyphens=False)


def _local(facts: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={text(value)}" for name, value in facts.get("local", {}).items())
    return f"Local steps: {settings}." if settings else ""


def _codec_facts(codec: type[Codec]) -> dict[str, Any]:
    facts = {"id": codec.id, "status": status(codec.slot, codec.id), "description": _first_paragraph(codec)}
    return {**facts, "settings": _settings(codec)}


def _preset_facts(name: str) -> dict[str, Any]:
    """A preset is a paper's method."""
    parameters = inspect.signature(PRESETS[name]).parameters
    settings = {key: parameter.default for key, parameter in parameters.items()}
    facts = {"id": name, "status": "comparison", "description": _first_paragraph(PRESETS[name])}
    return {**facts, "settings": settings, "local": local_settings(name)}


def _first_paragraph(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _settings(codec: type[Codec]) -> dict[str, Any]:
    """Every setting with its default; "…" where there is none."""
    try:
        return codec().config
    except (TypeError, SchemeError):
        return {item.name: "…" if item.default is MISSING else item.default for item in fields(codec)}


def _call(facts: dict[str, Any]) -> str:
    """The codec with all its settings, as schemes write it; nothing where it has none."""
    settings = ", ".join(f"{name}={text(value).replace('None', 'none')}" for name, value in facts["settings"].items())
    return f"{facts['id']}({settings})" if settings else ""
