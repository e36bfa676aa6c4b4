"""`sparsewire list`: the codecs of every slot and the presets, with their settings."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import MISSING, fields
from typing import Any

from sparsewire.codecs.contract import SLOTS, Codec, text
from sparsewire.codecs.presets import PRESETS, local_settings
from sparsewire.codecs.registry import codecs
from sparsewire.errors import SchemeError
from sparsewire.lab.arguments import add_json
from sparsewire.lab.tables import publish, table

from .parsers import add


def add_list(commands: Any) -> None:
    add_json(add(commands, "list", _list, "the codecs of every slot and their settings"))


def _list(args: argparse.Namespace) -> int:
    known = {slot: [_facts(found) for found in codecs(slot).values()] for slot in SLOTS}
    known["presets"] = [_preset_facts(name) for name in PRESETS]
    rows = [[slot, _call(facts), _purpose(facts)] for slot, found in known.items() for facts in found]
    publish(table(["slot", "codec", "what it does"], rows), known, args.json)
    return 0


def _purpose(facts: dict[str, Any]) -> str:
    local = ", ".join(f"{name}={text(value)}" for name, value in facts.get("local", {}).items())
    return f"{facts['description']} Local steps: {local}." if local else str(facts["description"])


def _facts(found: type[Codec]) -> dict[str, Any]:
    description = (found.__doc__ or "").strip().partition("\n")[0]
    return {"id": found.id, "description": description, "settings": _settings(found)}


def _preset_facts(name: str) -> dict[str, Any]:
    parameters = inspect.signature(PRESETS[name]).parameters
    settings = {key: parameter.default for key, parameter in parameters.items()}
    description = (PRESETS[name].__doc__ or "").partition("\n")[0]
    return {"id": name, "description": description, "settings": settings, "local": local_settings(name)}


def _settings(found: type[Codec]) -> dict[str, Any]:
    """Every setting with its default; "…" where there is none."""
    try:
        return found().config
    except (TypeError, SchemeError):
        return {item.name: "…" if item.default is MISSING else item.default for item in fields(found)}


def _call(facts: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={text(value).replace('None', 'none')}" for name, value in facts["settings"].items())
    return f"{facts['id']}({settings})" if settings else str(facts["id"])
