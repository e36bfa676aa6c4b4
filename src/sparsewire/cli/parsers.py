"""What the definitions of commands share."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from sparsewire.errors import InputError

EXTRAS = {"torch": "torch", "matplotlib": "report", "jinja2": "report"}  # by package
Command = Callable[[argparse.Namespace], int]


def lab(module: str) -> Command:
    """A command of the lab, whose module is imported only when it runs."""

    def run(args: argparse.Namespace) -> int:
        status: int = _load(module).main(args)
        return status

    return run


def _load(module: str) -> Any:
    try:
        return importlib.import_module(f"sparsewire.lab.{module}")
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise InputError(f"this needs {error.name}: pip install 'sparsewire[{EXTRAS[error.name]}]'") from None


def add(commands: Any, name: str, run: Command, summary: str, more: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=f"{summary}. {more}")
    parser.set_defaults(run=run)
    return parser


def add_group(commands: Any, name: str, summary: str) -> Any:
    parser = commands.add_parser(name, help=summary, description=summary)
    return parser.add_subparsers(title="what", metavar="WHAT", required=True)
