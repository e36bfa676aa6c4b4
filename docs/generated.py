"""Sections of the reference that the package writes itself: codecs and presets from the registry, commands from the
command line's parser."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator

from sparsewire.cli.entry import command_parser
from sparsewire.cli.listing import all_facts
from sparsewire.codecs.contract import text
from sparsewire.codecs.registry import STATUSES, codecs

SLOT_TITLES = {
    "select": "select: which entries are sent",
    "transform": "transform: in which basis they are selected",
    "indices": "indices: how positions are coded",
    "values": "values: how numbers are coded",
    "memory": "memory: what happens to the rest",
    "exchange": "exchange: how ranks come to the mean",
    "presets": "Presets",
}


# --- codecs ------------------------------------------------------------------------------------------------------


def codec_sections() -> str:
    """A section for each slot, an entry for each codec."""
    legend = "\n".join(f"- *{word}*: {meaning}" for word, meaning in STATUSES.items())
    return "\n\n".join([legend, *(_slot(slot, entries) for slot, entries in all_facts().items())])


def _slot(slot: str, entries: list[dict]) -> str:
    return "\n\n".join([f"## {SLOT_TITLES[slot]}", *(_codec(slot, entry) for entry in entries)])


def _codec(slot: str, entry: dict) -> str:
    settings = ", ".join(f"{name}={_default(value)}" for name, value in entry["settings"].items())
    call = f"{entry['id']}({settings})" if settings else entry["id"]
    lines = [f"### {entry['id']}", f"`{call}` ({entry['status']})", _escaped(_documentation(slot, entry))]
    if entry.get("local"):
        local = ", ".join(f"`{name}={text(value)}`" for name, value in entry["local"].items())
        lines.append(f"Local steps: {local}.")
    return "\n\n".join(lines)


def _documentation(slot: str, entry: dict) -> str:
    """All of a codec's docstring; of a preset its first paragraph, which names the paper."""
    known = codecs(slot) if slot != "presets" else {}
    documented = inspect.getdoc(known[entry["id"]]) if entry["id"] in known else ""
    return documented or entry["description"]


def _default(value: object) -> str:
    return text(value).replace("None", "none")


def _escaped(words: str) -> str:
    """Plain text as Markdown that shows it as it is, besides `code`."""
    pieces = re.split(r"(`[^`]*`)", words)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*_\[\]<>|])", r"\\\1", piece) for piece in pieces)


# --- commands ----------------------------------------------------------------------------------------------------


def command_sections() -> str:
    """A section for each command, with its usage and arguments."""
    return "\n\n".join(_command(name, parser) for name, parser in commands(command_parser()))


def commands(
    parser: argparse.ArgumentParser, prefix: str = "sparsewire"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something, by its whole name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from commands(inner, f"{prefix} {word}")
            return
    yield prefix, parser


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    rows = [_argument(parser, action) for action in actions]
    table = "\n".join(["| argument | meaning |", "|---|---|", *rows])
    described = _escaped((parser.description or "").strip())
    described = described[:1].upper() + described[1:]
    return f"## {name}\n\n{described}\n\n```text\n{_folded(usage)}\n```\n\n{table}"


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    names = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    value = "" if not action.option_strings or action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    meaning = parser._get_formatter()._expand_help(action) if action.help else ""
    choices = f" One of {', '.join(map(str, action.choices))}." if action.choices else ""
    argument = f"{names}{value}".replace("|", "\\|")
    return f"| `{argument}` | {_escaped(meaning).replace(chr(10), ' ')}{choices} |"


def _folded(usage: str, width: int = 88) -> str:
    """The usage in lines that break before an argument."""
    lines, rest = [""], re.split(r" (?=\[|--)", usage)
    for piece in rest:
        if len(lines[-1]) + len(piece) > width:
            lines.append("   ")
        lines[-1] += f" {piece}" if lines[-1] else piece
    return "\n".join(lines)


SECTIONS: dict[str, Callable[[], str]] = {"codecs": codec_sections, "commands": command_sections}
