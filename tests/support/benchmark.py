"""A script of benchmarks/ as a module; those that it imports are found beside it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load_benchmark(name: str) -> ModuleType:
    with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
        return importlib.import_module(name)
